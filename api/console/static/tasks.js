// Cancelling a task, and asking for one.
import { attempt, local, send } from "./console.js";

const said = document.getElementById("sent");
for (const button of document.querySelectorAll("button.cancel")) {
  button.hidden = false;
  button.addEventListener("click", () => attempt(said, button, async () => {
    await send("DELETE", button.dataset.target);
    return "Asked for its end: it is cancelled when the job has seen that.";
  }));
}

const form = document.getElementById("task");
if (form) form.closest("section").hidden = false;
const topic = form?.querySelector(".topic");
const choose = () => { if (topic) topic.hidden = form.elements.what.value !== "send"; };
form?.elements.what.addEventListener("change", choose);
if (form) choose();
form?.addEventListener("submit", (event) => {
  event.preventDefault();
  const { after, what, topic, key, value } = Object.fromEntries(new FormData(form));
  let given = value;
  try { given = JSON.parse(value); } catch { /* text as it is */ }
  const body = what === "send"
    ? { after, send: { topic, value: given, ...(key ? { key } : {}) } }
    : { after, set: { store: what, key, value: given } };
  attempt(said, form, async () => {
    const answer = await send("POST", form.dataset.target, body);
    return `Asked for: ${answer.id}, due ${local(new Date(answer.due))}. It is in the list when the job has seen it.`;
  });
});
