// A value of JSON as a tree, of which each level is asked for when it is opened.
import { ask, count, fail, make } from "./common.js";
import { letters } from "./letters.js";

/** The tree of the value at `path` (of /api/tree/...); `first` is its answer. */
export function tree(path, first) {
  const list = make("ul", {});
  if (first.parts) fill(list, path, [], first);
  else list.append(make("li", {}, ...value(first)));
  return make("div", { class: "tree", tabindex: "0", "aria-label": "value" }, list);
}

function value(part) {
  if (part.kind === "object" || part.kind === "array") {
    const [open, close] = part.kind === "object" ? "{}" : "[]";
    return [make("span", { class: "count" }, part.count ? `${open} ${count(part.count)} ${close}` : open + close)];
  }
  if (part.kind !== "string") return [make("span", { class: part.kind }, ...letters(part.text))];
  const more = part.more ? [make("span", { class: "count" }, ` and ${count(part.more)} more letters`)] : [];
  return [make("span", { class: "string" }, "“", ...letters(part.text), "”"), ...more];
}

function fill(list, path, at, found) {
  for (const part of found.parts) {
    const name = [make("span", { class: "name" }, ...letters(part.name)), ": "];
    if (!part.count) {
      list.append(make("li", {}, ...name, ...value(part)));
      continue;
    }
    const inner = make("ul", {});
    const details = make("details", {}, make("summary", {}, ...name, ...value(part)), inner);
    details.addEventListener("toggle", () => {
      if (details.open && !inner.childElementCount) load(inner, path, [...at, part.at], 0);
    });
    list.append(make("li", {}, details));
    if (at.length === 0 && found.count <= 20 && part.count <= 20) details.open = true;
  }
  const next = found.parts.length ? found.parts.at(-1).at + 1 : found.count;
  if (next < found.count) {
    const more = make("li", {}, make("button", { type: "button", onclick: () => {
      more.remove();
      load(list, path, at, next);
    } }, `${count(found.count - next)} more`));
    list.append(more);
  }
}

async function load(list, path, at, from) {
  const waiting = make("li", { "aria-busy": "true" });
  list.append(waiting);
  try {
    const found = await ask(`${path}?at=${at.join(".")}&from=${from}`);
    waiting.remove();
    fill(list, path, at, found);
  } catch (error) {
    fail(waiting, error);
  }
}
