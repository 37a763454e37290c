// Tags of samples, 1 to 9: the server keeps them; pages hear of changes, also of other tabs, by the event "tags" of the document.
import { ask, count, keys, make, say, there } from "./common.js";

export const TAGS = [1, 2, 3, 4, 5, 6, 7, 8, 9];
const MOST = 100; // changes that a tab can undo
const here = there("/"); // other servers may be below the same host
const tabs = new BroadcastChannel(`wids-tags ${here}`);

/** `tags`, from 1 on: `{name, count}`; `count`: samples with any; `file`: where they are kept, or "". */
export let state = { tags: TAGS.map(() => ({ name: "", count: 0 })), count: 0, file: "" };

export const nameOf = (tag) => state.tags[tag - 1].name || `tag ${tag}`;

/** The number of a tag in its colour; its name is its title. */
export const badge = (tag) => make("span", { class: "badge", "data-tag": String(tag), title: nameOf(tag) }, String(tag));

/** The tags of samples: a Map, index -> tags. */
export async function tagsOf(indices, options) {
  const found = await ask(`/api/tags?indices=${indices.join(",")}`, options);
  state = found;
  return new Map(Object.entries(found.of).map(([index, tags]) => [Number(index), tags]));
}

const tellPage = () => document.dispatchEvent(new CustomEvent("tags"));
tabs.onmessage = tellPage;
document.addEventListener("visibilitychange", () => document.hidden || tellPage());

async function change(body) {
  const found = await ask("/api/tags", { body });
  state = found;
  tabs.postMessage("changed");
  return found;
}

/** Set a tag, or remove it, on `{indices}`, or on `{list, first, last}`: of a list all from one sample to another, or all. */
export async function set(tag, isSet, samples) {
  const found = await change({ tag, is_set: isSet, ...samples });
  if (found.changed) keep({ undo: [...kept().undo, found.change], redo: [] });
  if (found.changed > 1) tell(found);
  tellPage();
}

/** Give a tag a name. */
export async function rename(tag, name) {
  await change({ tag, name });
  tellPage();
}

function tell({ tag, is_set: isSet, changed }) {
  say(`${nameOf(tag)} ${isSet ? "set on" : "removed from"} ${count(changed)} sample${changed === 1 ? "" : "s"}`);
}

// --- undoing: a tab knows its own changes, also on its next page

const STORED = `wids-undo ${here}`;
const kept = () => JSON.parse(sessionStorage.getItem(STORED) ?? '{"undo":[],"redo":[]}');
const keep = ({ undo: before, redo: after }) => sessionStorage.setItem(STORED, JSON.stringify({ undo: before.slice(-MOST), redo: after.slice(-MOST) }));
export const canUndo = () => kept().undo.length > 0;
export const canRedo = () => kept().redo.length > 0;

async function goBack(from, to) {
  const both = kept();
  const last = both[from].pop();
  if (!last) return say(`Nothing to ${from} in this tab`);
  try {
    const found = await change({ undo: last });
    both[to].push(found.change);
    keep(both);
    tell(found);
    tellPage();
  } catch (error) {
    if (error.found) keep(both);
    say(error.message);
  }
}

let turn = Promise.resolve();
const inTurn = (work) => () => void (turn = turn.then(work));
export const undo = inTurn(() => goBack("undo", "redo"));
export const redo = inTurn(() => goBack("redo", "undo"));

keys({ u: undo, U: redo });
document.addEventListener("keydown", (event) => {
  const key = event.key.toLowerCase();
  if (!(event.ctrlKey || event.metaKey) || event.altKey || !["z", "y"].includes(key) || event.target.closest?.("input, textarea, select")) return;
  event.preventDefault();
  if (key === "y" || event.shiftKey) redo();
  else undo();
});

/** The tag of a key, and whether it is meant for all from the last one on; null: it is of none. */
export function tagOfKey({ key, code, shiftKey }) {
  if (key === " ") return { tag: 1, isRange: shiftKey };
  if (/^[1-9]$/.test(key)) return { tag: Number(key), isRange: false };
  const digit = shiftKey && /^(?:Digit|Numpad)([1-9])$/.exec(code);
  return digit ? { tag: Number(digit[1]), isRange: true } : null;
}
