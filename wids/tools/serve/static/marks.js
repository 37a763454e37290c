// Marked samples: the server keeps them; pages hear of changes by the event "marks" of the document.
import { ask } from "./common.js";

/** Mark a sample, or no longer: `{count}`. */
export const mark = (index, isMarked) => change({ index, is_marked: isMarked });

/** Mark samples `start` to `end` - 1 of the list that a filter gives. */
export const markRange = (start, end, list, isMarked) => change({ start, end, ...list, is_marked: isMarked });

async function change(body) {
  const found = await ask("/api/marks", { body });
  document.dispatchEvent(new CustomEvent("marks", { detail: { ...found, asked: body } }));
  return found;
}

/** Whether a sample is marked. */
export async function isMarked(index, options) {
  return (await ask(`/api/marks?indices=${index}`, options)).marked.length > 0;
}
