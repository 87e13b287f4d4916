// Ctrl-Enter runs the statement.
const editor = document.getElementById("editor");
editor.addEventListener("keydown", (event) => {
  if (event.key === "Enter" && (event.ctrlKey || event.metaKey)) editor.requestSubmit();
});
