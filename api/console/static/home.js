// The first page updates itself: what differs is put in its place, so that nothing jumps. Nothing is asked for while nobody looks.
import { base, tell } from "./console.js";

const AGAIN = 5000; // milliseconds after which a server is asked again that had no place
const button = document.getElementById("pause");
const away = document.getElementById("away");
let paused = false;
let stream = null;

function replace(here, there) {
  if (here.isEqualNode(there)) return;
  const same = here.nodeType === there.nodeType && here.nodeName === there.nodeName && here.childNodes.length === there.childNodes.length;
  if (!same || here.nodeType !== Node.ELEMENT_NODE || !here.childNodes.length) return void here.replaceWith(there.cloneNode(true));
  for (const { name, value } of there.attributes) if (here.getAttribute(name) !== value) here.setAttribute(name, value);
  const news = [...there.childNodes];
  [...here.childNodes].forEach((child, number) => replace(child, news[number]));
}

function show({ data }) {
  const live = document.getElementById("live"); // a new one, where it was replaced
  const focused = live.contains(document.activeElement) && document.activeElement.getAttribute("href");
  const fresh = live.cloneNode(false);
  fresh.innerHTML = data;
  tell(fresh); // as it is told here
  replace(live, fresh);
  if (focused) document.querySelector(`#live a[href="${CSS.escape(focused)}"]`)?.focus({ preventScroll: true });
}

function follow() {
  const wanted = !paused && !document.hidden;
  if (wanted && !stream) {
    stream = new EventSource(`${base}/`);
    stream.onopen = () => { away.hidden = true; };
    stream.onmessage = show;
    stream.onerror = ({ target }) => { // what was there stays, its ages tick on, and the browser asks again
      if (target === stream) away.hidden = false;
      if (target.readyState !== EventSource.CLOSED || target !== stream) return;
      stream = null;
      setTimeout(follow, AGAIN);
    };
  } else if (!wanted) {
    stream?.close();
    stream = null;
  }
}

button.hidden = false;
button.addEventListener("click", () => {
  paused = !paused;
  button.setAttribute("aria-pressed", String(paused));
  button.textContent = paused ? "Go on" : "Pause updates";
  follow();
});
document.addEventListener("visibilitychange", follow);
follow();
