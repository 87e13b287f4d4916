// Cancelling a task.
import { send } from "./console.js";

const said = document.getElementById("sent");
for (const button of document.querySelectorAll("button.cancel")) {
  button.hidden = false;
  button.addEventListener("click", async () => {
    button.disabled = true;
    try {
      await send("DELETE", button.dataset.target);
      said.textContent = "Asked for its end: it is cancelled when the job has seen that.";
    } catch (error) {
      said.textContent = error.message;
      button.disabled = false;
    }
  });
}
