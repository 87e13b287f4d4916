// Moving through a key's time, and changing it by hand.
import { attempt, send } from "./console.js";

const REST = 600; // milliseconds for which the slider has to rest: each press of a key moves it

const slider = document.getElementById("slider");
const events = [...document.querySelectorAll(".events li")];
if (slider) {
  slider.parentElement.hidden = false;
  let rests = 0;
  const mark = () => {
    events.forEach((event) => event.classList.remove("chosen"));
    const event = events[events.length - 1 - Number(slider.value)];
    event.classList.add("chosen");
    slider.setAttribute("aria-valuetext", event.dataset.at);
    clearTimeout(rests);
    rests = setTimeout(() => { location.href = event.querySelector("a").href; }, REST);
  };
  slider.addEventListener("input", mark);
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
      if (response.ok || response.status === 404) {
        location.assign(form.dataset.target);
        return "It has come round.";
      }
      if (response.status !== 504) throw new Error((await response.json()).detail);
    }
    return `Sent as ${answer.token}; it is not in the answers yet. Are the jobs running?`;
  };
  form.addEventListener("submit", (event) => {
    event.preventDefault();
    const given = new FormData(form);
    let value = given.get("value");
    if (!textual) try { value = JSON.parse(value); } catch { /* the API says what is wrong with it */ }
    const body = { value, ...(given.has("agent") ? { agent: given.get("agent") } : {}) };
    attempt(said, form, async () => arrive(await send("PUT", form.dataset.target, body)));
  });
  document.getElementById("purge").addEventListener("click", () => {
    if (confirm("Purge this key? Its state is gone then, until new events come.")) attempt(said, form, async () => arrive(await send("DELETE", form.dataset.target)));
  });
}

// What is provisional becomes the truth a moment later.
if (document.getElementById("provisional") && !location.search) setTimeout(() => { if (!form?.contains(document.activeElement)) location.reload(); }, 5000);
