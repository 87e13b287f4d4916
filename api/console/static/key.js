// Moving through a key's time, and changing it by hand.
import { send } from "./console.js";

const slider = document.getElementById("slider");
const events = [...document.querySelectorAll(".events li")];
if (slider) {
  slider.parentElement.hidden = false;
  const chosen = new URLSearchParams(location.search).get("at");
  const found = events.findIndex((event) => new Date(event.dataset.at) <= new Date(chosen)); // the newest by then
  if (chosen) slider.value = found < 0 ? 0 : events.length - 1 - found;
  const mark = () => {
    events.forEach((event) => event.classList.remove("chosen"));
    const event = events[events.length - 1 - Number(slider.value)];
    event.classList.add("chosen");
    slider.setAttribute("aria-valuetext", event.dataset.at);
    return event;
  };
  if (chosen) mark();
  slider.addEventListener("input", mark);
  slider.addEventListener("change", () => { location.href = mark().querySelector("a").href; });
}

const form = document.getElementById("set");
const said = document.getElementById("sent");
if (form) {
  form.closest("section").hidden = false;
  const textual = /^(STRING|DATE|TIMESTAMP|BINARY)/.test(form.dataset.type);
  const arrive = async (answer) => {
    said.textContent = `Sent as ${answer.token}. Waiting for it to come round …`;
    for (let tries = 0; tries < 10; tries++) { // each waits for as long as the API lets one wait
      const response = await fetch(`${form.dataset.target}?after=${encodeURIComponent(answer.token)}`, { headers: { Accept: "application/json" } });
      if (response.ok || response.status === 404) return location.assign(form.dataset.target);
      if (response.status !== 504) throw new Error((await response.json()).detail);
    }
    said.textContent = `Sent as ${answer.token}; it is not in the answers yet. Are the jobs running?`;
  };
  const attempt = async (work) => {
    try { await arrive(await work()); } catch (error) { said.textContent = error.message; }
  };
  form.addEventListener("submit", (event) => {
    event.preventDefault();
    const given = new FormData(form);
    let value = given.get("value");
    if (!textual) try { value = JSON.parse(value); } catch { /* the API says what is wrong with it */ }
    const body = { value, ...(given.has("agent") ? { agent: given.get("agent") } : {}) };
    attempt(() => send("PUT", form.dataset.target, body));
  });
  document.getElementById("purge").addEventListener("click", () => {
    if (confirm("Purge this key? Its state is gone then, until new events come.")) attempt(() => send("DELETE", form.dataset.target));
  });
}

// What is provisional becomes the truth a moment later.
if (document.getElementById("provisional") && !location.search) setTimeout(() => { if (!form?.contains(document.activeElement)) location.reload(); }, 5000);
