// What all pages share: asking the server, words and numbers, keys. Text from a shard is set as text, never as HTML.

const root = new URL("..", import.meta.url);
/** The address of a path of this server, which may be below another one's path. */
export const there = (path) => new URL(`.${path}`, root).href;

/** Ask the server; an answer that is no success throws an Error with the server's sentence, and all of it as `found`. */
export async function ask(path, { body, signal } = {}) {
  const options = { signal, headers: { "X-Wids": "1" } };
  if (body !== undefined) {
    options.method = "POST";
    options.headers["Content-Type"] = "application/json";
    options.body = JSON.stringify(body);
  }
  let answer;
  try {
    answer = await fetch(there(path), options);
  } catch (error) {
    if (error.name === "AbortError") throw error;
    throw new Error("the server does not answer: does wids serve still run?");
  }
  const found = await answer.json().catch(() => ({ error: `the server answered with ${answer.status}` }));
  if (!answer.ok) throw Object.assign(new Error(found.error ?? `the server answered with ${answer.status}`), { found });
  return found;
}

/** The steps of an answer that comes a line at a time. */
export async function* steps(path, signal) {
  const answer = await fetch(there(path), { signal, headers: { "X-Wids": "1" } });
  if (!answer.ok) throw new Error((await answer.json()).error);
  const reader = answer.body.pipeThrough(new TextDecoderStream()).getReader();
  let rest = "";
  for (;;) {
    const { done, value } = await reader.read();
    if (done) break;
    const lines = (rest + value).split("\n");
    rest = lines.pop();
    for (const line of lines) {
      const step = JSON.parse(line);
      if (step.error) throw new Error(step.error);
      yield step;
    }
  }
}

/** An element: `make("p", { class: "note", onclick: f }, "words", child)`. Properties that begin with "on" are listeners. */
export function make(tag, properties = {}, ...children) {
  const element = document.createElement(tag);
  for (const [name, value] of Object.entries(properties)) {
    if (value === undefined || value === null || value === false) continue;
    if (name.startsWith("on")) element.addEventListener(name.slice(2), value);
    else element.setAttribute(name, value === true ? "" : value);
  }
  element.append(...children.filter((child) => child !== undefined && child !== null));
  return element;
}

export const count = (number) => number.toLocaleString("en");

/** Bytes as people read them: 1.2 MB. */
export function size(bytes) {
  if (bytes === 1) return "1 byte";
  const units = ["bytes", "kB", "MB", "GB", "TB", "PB"];
  let k = 0;
  while (bytes >= 1000 && k < units.length - 1) [bytes, k] = [bytes / 1000, k + 1];
  return `${k ? bytes.toPrecision(3) : bytes} ${units[k]}`;
}

/** Show why something failed, in the place where its result would be. */
export function fail(place, error) {
  if (error.name === "AbortError") return;
  place.replaceChildren(make("p", { class: "error", role: "alert" }, error.message));
  place.removeAttribute("aria-busy");
}

let fading;
/** A short message at the lower edge. */
export function say(words) {
  const toast = document.getElementById("toast");
  toast.textContent = words;
  toast.classList.add("shown");
  clearTimeout(fading);
  fading = setTimeout(() => toast.classList.remove("shown"), 4000);
}

/** Call `handlers[key](event)` for keys, unless somebody types. */
export function keys(handlers) {
  document.addEventListener("keydown", (event) => {
    const isTyping = event.target.closest?.("input, textarea, select, [contenteditable]");
    if (document.querySelector("dialog[open]")) return;
    if (event.ctrlKey || event.metaKey || event.altKey || (isTyping && event.key !== "Escape")) return;
    const handler = handlers[event.key];
    if (handler && handler(event) !== false) event.preventDefault();
  });
}

function changeTheme() {
  const root = document.documentElement;
  const isDark = root.dataset.theme ? root.dataset.theme === "dark" : matchMedia("(prefers-color-scheme: dark)").matches;
  root.dataset.theme = isDark ? "light" : "dark";
  localStorage.setItem("wids-theme", root.dataset.theme);
}

document.getElementById("theme").addEventListener("click", changeTheme);
const showKeys = () => document.getElementById("help").showModal();
document.getElementById("keys").addEventListener("click", showKeys);
keys({ t: changeTheme, "?": showKeys });
