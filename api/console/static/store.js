// Rows that change while one looks are marked, with their new values.
import { base } from "./console.js";

const table = document.getElementById("rows");
if (table && "follow" in table.dataset && !new URLSearchParams(location.search).has("cursor")) {
  const names = JSON.parse(table.dataset.names);
  const columns = [...table.querySelectorAll("thead th")].map((cell) => cell.firstElementChild.textContent);
  const path = (row) => names.map((name) => encodeURIComponent(typeof row[name] === "string" ? row[name] : JSON.stringify(row[name])).replace(/[!'()*]/g, (c) => `%${c.charCodeAt(0).toString(16).toUpperCase()}`)).join("/");
  const rows = new Map([...table.querySelectorAll("tbody tr")].map((row) => [row.dataset.key, row]));
  const events = new EventSource(`${base}/stores/${table.dataset.store}/changes`);
  events.addEventListener("state", ({ data }) => {
    const state = JSON.parse(data);
    const row = rows.get(path(state));
    if (!row || document.hidden) return;
    const value = columns.indexOf("value");
    if (value > 0 && ["string", "number", "boolean"].includes(typeof state.value)) row.children[value].textContent = String(state.value);
    row.classList.remove("changed");
    void row.offsetWidth; // so that the mark begins anew
    row.classList.add("changed");
  });
  addEventListener("pagehide", () => events.close());
}
