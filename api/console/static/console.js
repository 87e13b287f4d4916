// What every screen has: times in the reader's zone, ages that tick, downloads, and copying.

const meta = (name) => document.querySelector(`meta[name="${name}"]`)?.content ?? "";
export const base = meta("base");

// Send what a page writes: JSON, with the mark that only a page of this site can send.
export async function send(method, target, body) {
  const headers = { "Accept": "application/json", "Content-Type": "application/json", "Statehouse-CSRF": meta("csrf") };
  const response = await fetch(target, { method, headers, body: body === undefined ? undefined : JSON.stringify(body) });
  const answer = await response.json();
  if (!response.ok) throw new Error(answer.detail ?? answer.title);
  return answer;
}

// Do what a form or a button is for, once at a time, and say what came of it: `work` gives the text.
export async function attempt(said, where, work) {
  const buttons = where.matches("button") ? [where] : where.querySelectorAll("button");
  const enable = (on) => buttons.forEach((button) => { button.disabled = !on; });
  enable(false);
  said.textContent = "Sending …";
  try { said.textContent = await work(); } catch (error) { said.textContent = error.message; }
  enable(true);
}

const UNITS = [[1, "s"], [60, "min"], [3600, "h"], [86400, "days"]];

export function ago(seconds) {
  const amount = Math.abs(seconds);
  const [length, unit] = UNITS.findLast(([size]) => amount >= size * (size === 1 ? 0 : 1.5)) ?? UNITS[0];
  const text = `${Math.round(amount / length)} ${unit}`;
  return seconds >= 0 ? `${text} ago` : `in ${text}`;
}

export const local = (moment, style = { dateStyle: "medium", timeStyle: "medium" }) => moment.toLocaleString(undefined, style);

export function tell(root = document) {
  for (const title of root.querySelectorAll("svg title")) {
    const [at] = /^\d{4}-\d\d-\d\dT[\d:.]+Z/.exec(title.textContent) ?? [];
    if (at) title.textContent = local(new Date(at)) + title.textContent.slice(at.length);
  }
  for (const text of root.querySelectorAll("svg text[data-at]")) {
    text.textContent = local(new Date(text.dataset.at), { month: "short", day: "numeric", hour: "2-digit", minute: "2-digit" });
    delete text.dataset.at;
  }
  for (const time of root.querySelectorAll("time[datetime]")) {
    const moment = new Date(time.dateTime);
    if (Number.isNaN(moment.valueOf())) continue;
    if (time.classList.contains("age")) {
      time.textContent = ago((Date.now() - moment) / 1000);
    } else if (!time.dataset.told) {
      time.textContent = local(moment);
      time.dataset.told = "yes";
    }
  }
}

tell();
setInterval(tell, 1000);

document.addEventListener("click", async (event) => {
  const link = event.target.closest("a.download");
  if (!link) return;
  event.preventDefault();
  const response = await fetch(link.href, { headers: { Accept: link.dataset.accept } });
  if (!response.ok) return alert((await response.json()).detail);
  const saved = document.createElement("a");
  saved.href = URL.createObjectURL(await response.blob());
  saved.download = link.dataset.name;
  saved.click();
  URL.revokeObjectURL(saved.href);
});

for (const wide of document.querySelectorAll(".wide")) if (wide.scrollWidth > wide.clientWidth) wide.tabIndex = 0; // for arrow keys

for (const block of document.querySelectorAll("pre.copy")) {
  const button = document.createElement("button");
  button.className = "quiet";
  button.textContent = "Copy";
  button.addEventListener("click", async () => {
    await navigator.clipboard.writeText(block.textContent);
    button.textContent = "Copied";
  });
  block.after(button);
}
