// The menu of tags: their names, how many samples have each, a list of these alone, files of them, undo.
import { count, make, say, there } from "./common.js";
import { TAGS, badge, canRedo, canUndo, nameOf, redo, rename, set, state, undo } from "./tags.js";

const $ = (id) => document.getElementById(id);
const LETTERS = 60; // of a name

/** `list.tag`, `list.where`: what is shown. `open({tag})`: show another list. Returns `show()`: show what is so now. */
export function tagPanel({ list, open }) {
  const rows = TAGS.map((tag) => {
    const only = make("button", { type: "button", class: "plain", onclick: () => open({ tag: list.tag === String(tag) ? "" : String(tag) }) }, badge(tag));
    const name = make("input", { "aria-label": `Name of tag ${tag}`, placeholder: `tag ${tag}`, maxlength: String(LETTERS), dir: "auto", onchange: () => rename(tag, name.value).catch((error) => say(error.message)) });
    const number = make("span", { class: "number soft" });
    return { tag, only, name, number, element: make("li", {}, only, name, number) };
  });
  $("each-tag").replaceChildren(...rows.map(({ element }) => element));
  $("only").addEventListener("click", () => open({ tag: list.tag ? "" : "any" }));
  $("undo").addEventListener("click", undo);
  $("redo").addEventListener("click", redo);
  $("untag").addEventListener("click", () => {
    const { tag, where } = list;
    const samples = where ? "the samples of this filter" : `${count(state.tags[tag - 1].count)} sample(s)`;
    if (confirm(`Remove ${nameOf(tag)} from ${samples}?`)) set(Number(tag), false, { list: { where, tag } }).catch((error) => say(error.message));
  });

  function show() {
    const { tag: shown, where } = list;
    const one = shown && shown !== "any" ? nameOf(shown) : "";
    $("tagged").textContent = `${count(state.count)} tagged`;
    $("tags").classList.toggle("some", state.count > 0);
    $("only").setAttribute("aria-pressed", String(shown !== ""));
    $("only").textContent = shown ? "Show all samples" : "Show all with a tag";
    $("only").disabled = !state.count && !shown;
    for (const { tag, only, name, number } of rows) {
      only.setAttribute("aria-pressed", String(shown === String(tag)));
      only.setAttribute("aria-label", `Show only ${nameOf(tag)}`);
      only.title = `Show only ${nameOf(tag)}; the key ${tag} sets it`;
      if (document.activeElement !== name) name.value = state.tags[tag - 1].name;
      number.textContent = count(state.tags[tag - 1].count);
    }
    $("undo").disabled = !canUndo();
    $("redo").disabled = !canRedo();
    const query = new URLSearchParams({ tag: shown || "any", ...(shown && where ? { where } : {}) });
    $("as-view").href = there(`/api/list.zip?${query}`);
    $("as-indices").href = there(`/api/list.npy?${query}`);
    $("of-tag").textContent = `${one || "All with a tag"}${shown && where ? ", of this filter" : ""}:`;
    for (const id of ["as-view", "as-indices", "of-tag"]) $(id).hidden = !(one ? state.tags[shown - 1].count : state.count);
    $("untag").hidden = !one || $("of-tag").hidden;
    $("kept").textContent = state.file ? `Kept in ${state.file}.` : "Kept while wids serve runs: save them, or start it with --tags FILE.npy.";
  }

  return { show };
}
