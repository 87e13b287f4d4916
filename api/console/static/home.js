// The first page updates itself: every two seconds what differs is put in its place, so that nothing jumps.
import { tell } from "./console.js";

const EVERY = 2000;
const button = document.getElementById("pause");
button.hidden = false;
let paused = false;
button.addEventListener("click", () => {
  paused = !paused;
  button.setAttribute("aria-pressed", String(paused));
  button.textContent = paused ? "Go on" : "Pause updates";
});

function replace(here, there) {
  if (here.isEqualNode(there)) return;
  const same = here.nodeType === there.nodeType && here.nodeName === there.nodeName && here.childNodes.length === there.childNodes.length;
  if (!same || here.nodeType !== Node.ELEMENT_NODE || !here.childNodes.length) return void here.replaceWith(there.cloneNode(true));
  for (const { name, value } of there.attributes) if (here.getAttribute(name) !== value) here.setAttribute(name, value);
  const news = [...there.childNodes];
  [...here.childNodes].forEach((child, number) => replace(child, news[number]));
}

async function update() {
  if (!paused && !document.hidden) {
    try {
      const response = await fetch(location.href, { headers: { Accept: "text/html" } });
      if (response.ok) {
        const fresh = new DOMParser().parseFromString(await response.text(), "text/html");
        const live = document.getElementById("live");
        if (!live.contains(document.activeElement)) replace(live, fresh.getElementById("live"));
        tell(live);
      }
    } catch { /* the server is away: what was there stays, and its ages tick on */ }
  }
  setTimeout(update, EVERY);
}
setTimeout(update, EVERY);
