// Rows that change while one looks are marked, with their new values. The page's own rows are asked for again, and not every change
// of the store followed: that costs the server the same, however busy the store is.
import { tell } from "./console.js";

const EVERY = 2000; // milliseconds; and a server that takes long is asked less often
const [SHARE, MOST] = [20, 30000];
const table = document.getElementById("rows");
const path = (row) => JSON.parse(table.dataset.names).map((name) => row[name]);
let before = null;

function show(cell, value) {
  const time = cell.querySelector("time");
  if (time && typeof value === "string") {
    time.dateTime = value;
    delete time.dataset.told;
  } else if (["string", "number", "boolean"].includes(typeof value)) {
    cell.textContent = typeof value === "number" ? value.toLocaleString("en", { maximumFractionDigits: 20 }) : String(value);
  }
}

async function update(target, columns) {
  const began = performance.now();
  if (!document.hidden) {
    try {
      const response = await fetch(target, { headers: { Accept: "application/json" } });
      if (response.ok) {
        const { rows } = await response.json();
        const now = new Map(rows.map((row) => [JSON.stringify(path(row)), row]));
        const shown = [...table.tBodies[0].rows];
        if (before) rows.forEach((row, number) => {
          const old = before.get(JSON.stringify(path(row)));
          const line = shown[number];
          if (!old || !line || line.dataset.place !== String(number) || JSON.stringify(old) === JSON.stringify(row)) return;
          columns.forEach((name, place) => { if (place && JSON.stringify(old[name]) !== JSON.stringify(row[name])) show(line.children[place], row[name]); });
          line.classList.remove("changed");
          void line.offsetWidth; // so that the mark begins anew
          line.classList.add("changed");
        });
        before = now.size === shown.length ? now : null; // other keys than those on the page: nothing is told of them
        tell(table);
      }
    } catch { /* the server is away: what was there stays */ }
  }
  setTimeout(update, Math.min(MOST, Math.max(EVERY, SHARE * (performance.now() - began))), target, columns);
}

if (table) {
  [...table.tBodies[0].rows].forEach((row, number) => { row.dataset.place = String(number); });
  const target = new URL(location.href);
  target.pathname = table.dataset.target;
  target.searchParams.delete("hide");
  for (const [name, value] of [...target.searchParams]) if (!value) target.searchParams.delete(name);
  target.searchParams.set("limit", table.dataset.limit);
  const columns = [...table.querySelectorAll("thead th")].map((cell) => cell.firstElementChild.textContent);
  update(target, columns);
}
