// Rows that change while one looks are marked, with their new cells: the page is asked for again, and not every change of the store
// followed. That costs the server the same, however busy the store is.
import { tell } from "./console.js";

const EVERY = 2000; // milliseconds; and at most for a hundredth of the time: a server that takes long is asked less often
const [SHARE, MOST] = [100, 30000];
const key = (line) => `${line.querySelector("a").getAttribute("href")} ${line.dataset.window}`; // a key has a row a window

function show(line, now) {
  if (line.isEqualNode(now)) return;
  [...now.cells].forEach((cell, number) => { if (!line.cells[number].isEqualNode(cell)) line.cells[number].replaceWith(cell.cloneNode(true)); });
  void line.offsetWidth; // so that the mark begins anew
  line.classList.add("changed");
}

async function update() {
  const began = performance.now();
  const table = document.getElementById("rows");
  if (table && !document.hidden) {
    try {
      const response = await fetch(location.href, { headers: { Accept: "text/html" } });
      const news = new DOMParser().parseFromString(await response.text(), "text/html");
      const lines = new Map([...(news.getElementById("rows")?.tBodies[0].rows ?? [])].map((line) => [key(line), line]));
      tell(news); // as it is told here
      for (const line of table.tBodies[0].rows) {
        line.classList.remove("changed");
        if (!line.classList.length) line.removeAttribute("class");
        if (lines.has(key(line))) show(line, lines.get(key(line))); // of one that is on another page by now nothing is told
      }
    } catch { /* the server is away: what was there stays */ }
  }
  setTimeout(update, Math.min(MOST, Math.max(EVERY, SHARE * (performance.now() - began))));
}

setTimeout(update, EVERY);
