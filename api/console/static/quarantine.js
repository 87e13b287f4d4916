// Sending refused records again.
import { attempt, send } from "./console.js";

const said = document.getElementById("sent");
for (const button of document.querySelectorAll("button.requeue")) {
  button.hidden = false;
  button.addEventListener("click", () => {
    const { reason, record, count } = button.dataset;
    if (!record && !confirm(`Send ${count} records again?`)) return;
    attempt(said, button, async () => {
      let total = 0, answer;
      do { // so many at a time
        answer = await send("POST", said.dataset.target, record ? { records: [record] } : { reason });
        total += answer.sent;
      } while (answer.more);
      const before = answer.before - (total - answer.sent);
      return `Sent ${total} again; ${before} had been sent before. Here they are marked when the jobs have seen them.`;
    });
  });
}
