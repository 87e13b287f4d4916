// Ctrl-Enter runs the statement; a name beside it goes to where the cursor is.
const editor = document.getElementById("editor");
const text = editor.elements.q;
editor.addEventListener("keydown", (event) => {
  if (event.key === "Enter" && (event.ctrlKey || event.metaKey)) editor.requestSubmit();
});
for (const item of document.querySelectorAll("[data-insert]")) {
  const button = document.createElement("button");
  button.type = "button";
  button.className = "name";
  button.title = `Insert ${item.dataset.insert}`;
  button.append(...(item.querySelector("code") ? [item.querySelector("code")] : item.childNodes));
  item.prepend(button);
  button.addEventListener("click", () => {
    const before = text.value.slice(0, text.selectionStart);
    text.setRangeText((/[\w"]$/.test(before) ? " " : "") + item.dataset.insert, text.selectionStart, text.selectionEnd, "end");
    text.focus();
  });
}
