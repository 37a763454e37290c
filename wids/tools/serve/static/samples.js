// The page of many samples: what the address says is what is shown, and the other way round.
import { ask, count, fail, keys, make, say, steps, there } from "./common.js";
import { cell, showTags, soon } from "./cells.js";
import { showColumns } from "./facets.js";
import { Grid } from "./grid.js";
import * as table from "./table.js";
import { tagPanel } from "./tagpanel.js";
import { nameOf, set, tagOfKey, tagsOf } from "./tags.js";

const BLOCK = 40; // rows in a request
const BLOCKS = 60; // that are kept
const AGAIN = 1000; // milliseconds after which rows that were not there yet are asked for again

const $ = (id) => document.getElementById(id);
const all = Number($("samples").dataset.samples);
const shards = Number($("samples").dataset.shards);

// --- what is shown: `where` (SQL), `tag` (only these; "any", or ""), by which column in which direction; and how: `view` ("" or "table"),
// `field`, `caption`, `size`

const list = { where: "", tag: "", sort: "", desc: false };
let view = "";
const look = { field: "", caption: "", size: 150, ...JSON.parse(localStorage.getItem("wids-grid") ?? "{}") };
let names = []; // of classes
let lines = []; // columns of the table
let blocks = new Map(); // number of a block -> {rows, error, stop}
let opening = new AbortController();
let anchor = null; // `{at, index}` where a range of tags begins
let isOpen = false; // the list that is shown is the one that was asked for last
let hasShown = false; // some list is
let waiting = ""; // a filter out of a link from elsewhere: SQL takes work, so a person looks at it before it runs
const OURS = { isOurs: true }; // the state of addresses that this page has written
const WAITS = "This filter came with a link. Look at it; the button runs it.";
let writing; // of the address

const asked = (more, { where, tag, sort, desc } = list) => new URLSearchParams(Object.entries({ where, tag, sort, desc: desc ? "1" : "", ...more }).filter(([, value]) => value !== ""));
const isWhole = ({ where, tag, sort }) => !where && !tag && !sort;

function address(at) {
  const query = asked({ view, at: at ? String(at) : "" });
  return there(query.size ? `/samples?${query}` : "/samples");
}

const remember = () => localStorage.setItem("wids-grid", JSON.stringify(look));

// --- rows

function block(number) {
  let found = blocks.get(number);
  if (found) {
    blocks.delete(number);
    blocks.set(number, found);
    return found;
  }
  found = { rows: null, error: null, stop: new AbortController() };
  blocks.set(number, found);
  load(number, found);
  for (const [other, { stop }] of blocks) {
    if (blocks.size <= BLOCKS) break;
    stop.abort();
    blocks.delete(other);
  }
  return found;
}

async function load(number, found) {
  const query = asked({ start: String(number * BLOCK), count: String(BLOCK), field: look.field });
  for (const name of view ? lines.filter(({ kind }) => kind === "column").map((each) => each.name) : [look.caption]) query.append("columns", name);
  const { signal } = found.stop;
  try {
    const answer = await soon(() => ask(`/api/rows?${query}`, { signal }), signal, { isUrgent: true });
    if (blocks.get(number) !== found) return;
    found.rows = answer.rows;
    if (answer.rows.some((row) => row.is_pending)) setTimeout(() => blocks.get(number) === found && isSeen(number) && load(number, found), AGAIN);
    if (answer.total !== grid.total && list.tag) setTotal(answer.total);
  } catch (error) {
    if (error.name === "AbortError") return;
    found.error = error.message;
  }
  grid.renew(number * BLOCK, (number + 1) * BLOCK);
}

let seen = [0, 0];
const isSeen = (number) => number * BLOCK < seen[1] && (number + 1) * BLOCK > seen[0];
let wanting;

function want(first, end) {
  seen = [first, end];
  clearTimeout(wanting);
  wanting = setTimeout(() => {
    for (const [number, { rows, error, stop }] of blocks) {
      if ((rows || error) && !(error && isSeen(number))) continue;
      if (!isSeen(number)) {
        stop.abort();
        blocks.delete(number);
      }
    }
    for (let number = Math.floor(first / BLOCK); number * BLOCK < end; number += 1) block(number);
  }, 60);
  place();
}

const row = (at) => blocks.get(Math.floor(at / BLOCK))?.rows?.[at % BLOCK];

function draw(at) {
  const known = row(at);
  const { error } = blocks.get(Math.floor(at / BLOCK)) ?? {};
  const about = known ?? { index: isWhole(list) ? at : "", error };
  const element = view ? table.line(about, lines, leaveFor) : cellOf(about, at, Boolean(known && !known.error));
  label(element, about);
  return element;
}

function label(element, { index, key, error, tags = [] }) {
  element.setAttribute("aria-label", [`Sample ${index}`, key, error && "an error", ...tags.map(nameOf)].filter(Boolean).join(", "));
  element.setAttribute("aria-selected", String(tags.length > 0));
}

function cellOf(about, at, canTag) {
  const classes = { [look.caption]: table.classesOf(look.caption, names) };
  const element = cell(about, { caption: look.caption, names: classes, ontag: canTag ? (_, isSet, event) => tag(at, { tag: 1, isSet, isRange: event.shiftKey }) : undefined });
  element.querySelector(".link").addEventListener("click", leaveFor);
  return element;
}


function leaveFor() {
  if (!waiting) history.replaceState(OURS, "", address(grid.first)); // so that Back comes to where we were
}

const grid = new Grid($("grid"), { draw, onmove: want, onkey: onKey });
grid.size = look.size;

/** Cells or lines, with the head that belongs to the order. */
function arrange() {
  const root = $("grid");
  root.querySelector(".head")?.remove();
  root.classList.toggle("lines", Boolean(view));
  if (view) {
    const top = table.head(lines, list, (order) => open({ ...order, isNew: true }));
    root.style.setProperty("--columns", table.template(lines));
    top.style.minWidth = `${table.width(lines)}px`;
    root.prepend(top);
  }
  grid.lines = view ? { high: table.HIGH, width: table.width(lines), head: table.HEAD } : null;
  for (const [id, is] of [["as-grid", !view], ["as-table", Boolean(view)]]) $(id).setAttribute("aria-pressed", String(is));
  document.querySelectorAll("#view .of-cells").forEach((each) => (each.hidden = Boolean(view)));
  $("sorted").hidden = !list.sort;
  $("sorted").textContent = `${list.sort} ${list.desc ? "↓" : "↑"} ✕`;
}

function place() {
  const first = grid.first;
  $("slider").value = String(first);
  $("place").textContent = grid.total ? `${count(seen[0] + 1)}–${count(seen[1])} of ${count(grid.total)}` : "";
  clearTimeout(writing);
  writing = setTimeout(() => isOpen && !waiting && history.replaceState(OURS, "", address(first)), 300);
}

function setTotal(total) {
  blocks.forEach(({ stop }) => stop.abort());
  blocks = new Map();
  arrange();
  grid.reset(total, Math.min(grid.first, Math.max(total - 1, 0)));
  tell(total);
}

function tell(total) {
  const what = list.tag ? (list.tag === "any" ? "tagged" : nameOf(list.tag)) : "match";
  $("count").textContent = list.where || list.tag ? `${count(total)} of ${count(all)} ${what}` : `${count(all)} sample${all === 1 ? "" : "s"}`;
  $("slider").max = String(Math.max(total - 1, 0));
  $("told").replaceChildren();
  if (!total) $("told").append(make("p", { class: "soft none" }, nothing()));
}

function nothing() {
  if (!all) return "The dataset has no samples.";
  if (!list.where) return list.tag === "any" ? "No sample has a tag." : "No sample has this tag.";
  return list.tag ? "No sample with this tag matches this filter." : "No sample matches this filter.";
}

// --- a list is opened: by the address, a filter, a toggle

/** Show another list, or the same anew (`isSame`); if that fails, the one that is shown stays, and the reason is beside the filter. */
async function open({ at = 0, isNew = false, isSame = false, ...changes } = {}) {
  const wanted = { ...list, ...changes };
  opening.abort();
  opening = new AbortController();
  const { signal } = opening;
  isOpen = false;
  $("grid").setAttribute("aria-busy", "true");
  $("where").removeAttribute("aria-invalid");
  if (!isWhole(wanted)) $("count").textContent = "looking …";
  try {
    let total = all;
    if (!isWhole(wanted)) total = (await ask(`/api/rows?${asked({ start: "0", count: "1" }, wanted)}`, { signal })).total;
    Object.assign(list, wanted);
    if (isNew) history.pushState(OURS, "", address(at));
    hasShown = true;
    blocks.forEach(({ stop }) => stop.abort());
    blocks = new Map();
    $("why").replaceChildren(...(waiting ? [make("p", { class: "soft", role: "status" }, WAITS)] : []));
    if (waiting) document.body.classList.add("filtering");
    tell(total);
    arrange();
    grid.reset(total, at);
    isOpen = true;
    place();
    panel.show();
    $("as-filtered").hidden = !list.where || !total;
    $("as-filtered").href = there(`/api/list.zip?${new URLSearchParams({ where: list.where })}`);
    if (!isSame) showFacets(signal);
    return true;
  } catch (error) {
    if (error.name === "AbortError") return;
    const isOfFilter = wanted.where && !(hasShown && wanted.where === list.where);
    if (hasShown) tell(grid.total);
    else arrange(), grid.reset(all, 0), tell(all), showFacets(signal);
    if (!isOfFilter) {
      fail($("told"), error);
    } else {
      fail($("why"), error);
      $("where").setAttribute("aria-invalid", "true");
      document.body.classList.add("filtering");
    }
    isOpen = hasShown = true;
  } finally {
    if (!signal.aborted) $("grid").removeAttribute("aria-busy");
  }
}

function read() {
  const query = new URLSearchParams(location.search);
  view = query.get("view") === "table" ? "table" : "";
  const where = (query.get("where") ?? "").trim();
  const isOurs = history.state?.isOurs || document.referrer.startsWith(there("/"));
  waiting = isOurs ? "" : where;
  $("where").value = where;
  $("clear").hidden = !where;
  const at = Number(query.get("at") ?? 0);
  return { at: Number.isSafeInteger(at) && at >= 0 ? at : 0, where: isOurs ? where : "", tag: query.get("tag") ?? "", sort: query.get("sort") ?? "", desc: query.get("desc") === "1" };
}

async function filter(text) {
  const where = text.trim();
  $("where").value = where;
  $("clear").hidden = !where;
  const isWaiting = Boolean(waiting) && where === waiting;
  waiting = "";
  if (isWaiting) history.replaceState(OURS, "", location.href);
  const isDone = await open(isWaiting ? read() : { where, isNew: true });
  if (isDone && document.activeElement?.closest("#filter")) $("grid").focus({ preventScroll: true });
}

window.addEventListener("popstate", () => open(read()));

function showAs(other) {
  if (view === other) return;
  const first = grid.first;
  view = other;
  history.pushState(OURS, "", address(first));
  again();
}
$("as-grid").addEventListener("click", () => showAs(""));
$("as-table").addEventListener("click", () => showAs("table"));
$("sorted").addEventListener("click", () => open({ sort: "", desc: false, isNew: true }));

$("filter").addEventListener("submit", (event) => {
  event.preventDefault();
  filter($("where").value);
});
$("where").addEventListener("keydown", (event) => {
  if (event.key === "Enter" && !event.shiftKey) {
    event.preventDefault();
    filter($("where").value);
  } else if (event.key === "Escape") {
    $("grid").focus();
  }
});
$("clear").addEventListener("click", () => filter(""));

// --- columns and values

const { showFacets, columns } = showColumns({ list, filter, names: (found) => (names = found) });

columns.then((found) => {
  lines = table.columns(found);
  if (view) again();
  for (const { name } of found.columns) $("caption").append(make("option", { value: name }, name));
  for (const name of found.fields) $("field").append(make("option", { value: name }, name));
  for (const [id, value] of [["caption", look.caption], ["field", look.field]]) {
    const select = $(id);
    if (value && ![...select.options].some((option) => option.value === value)) {
      look[id] = "";
      again();
    }
    select.value = look[id];
  }
});

function again() {
  remember();
  blocks.forEach(({ stop }) => stop.abort());
  blocks = new Map();
  arrange();
}

$("field").addEventListener("change", () => {
  look.field = $("field").value;
  again();
});
$("caption").addEventListener("change", () => {
  look.caption = $("caption").value;
  again();
});
$("size").value = String(look.size);
$("size").addEventListener("input", () => {
  look.size = Number($("size").value);
  remember();
  grid.size = look.size;
});

// --- jumps

$("slider").addEventListener("input", () => grid.show(Number($("slider").value)));

$("by").addEventListener("change", () => {
  $("to").placeholder = { index: "0", key: "the whole key", shard: `0 to ${shards - 1}` }[$("by").value];
  $("to").inputMode = $("by").value === "key" ? "text" : "numeric";
});

let finding = new AbortController();

$("jump").addEventListener("submit", async (event) => {
  event.preventDefault();
  const [by, text] = [$("by").value, $("to").value.trim()];
  if (!text) return $("to").focus();
  finding.abort();
  finding = new AbortController();
  $("told").replaceChildren();
  try {
    if (by === "key") await findKey($("to").value, finding.signal);
    else await jump(by, text.replaceAll(/[,\s_]/g, ""), finding.signal);
  } catch (error) {
    fail($("told"), error);
  }
});

async function jump(by, number, signal) {
  const found = await ask(`/api/place?${asked({ [by]: number })}`, { signal });
  if (!grid.total) return;
  const at = Math.min(found.at, grid.total - 1);
  grid.show(at);
  grid.current = at;
  $("grid").focus({ preventScroll: true });
  if (!found.is_shown) say(by === "shard" ? "No sample of this shard is shown; this is the next one" : "This sample is not shown here; this is the next one");
}

async function findKey(key, signal) {
  const bar = make("progress", { max: shards, "aria-label": "Shards that were searched" });
  const words = make("span", { class: "soft" }, "looking for the key …");
  const stop = make("button", { type: "button", class: "plain", onclick: () => {
    finding.abort();
    $("told").replaceChildren();
  } }, "Cancel");
  $("told").replaceChildren(make("div", { class: "row" }, bar, words, stop));
  let last;
  for await (const step of steps(`/api/find?key=${encodeURIComponent(key)}`, signal)) {
    last = step;
    bar.value = step.done;
    words.textContent = `reading the member tables of all shards: ${count(step.done)} of ${count(step.shards)}${step.found ? `, found in ${count(step.found)}` : ""}`;
  }
  if (!last?.indices) throw new Error("the search ended early: does wids serve still run?");
  const failed = last.errors ? `${count(last.errors)} shard${last.errors === 1 ? "" : "s"} could not be read: ${last.why[0]}` : "";
  $("told").replaceChildren();
  if (!last.found) throw new Error(`no sample has the key ${JSON.stringify(key)}${failed ? `; ${failed}` : ""}`);
  await jump("index", last.indices[0], signal);
  const told = [];
  if (last.found > 1) {
    told.push(make("span", {}, `${count(last.found)} samples have this key:`));
    for (const index of last.indices.slice(0, 12)) told.push(make("button", { class: "plain", type: "button", onclick: () => jump("index", index, new AbortController().signal).catch((error) => fail($("told"), error)) }, count(index)));
  }
  if (failed) told.push(make("span", { class: "error" }, failed));
  $("told").replaceChildren(...(told.length ? [make("div", { class: "row" }, ...told)] : []));
}

// --- tags

const panel = tagPanel({ list, open: (changes) => open({ ...changes, isNew: true }) });

/** Set a tag on the sample of a place, or remove it; `isRange`: on all from the last one; `isSet`: which; default: the other. */
async function tag(at, { tag: which, isRange, isSet }) {
  const known = row(at);
  if (!known || known.error) return;
  const is = isSet ?? !known.tags.includes(which);
  const from = (isRange && anchor) || { at, index: known.index };
  const many = Math.abs(from.at - at) + 1;
  if (many > 1000 && !confirm(`${is ? "Set" : "Remove"} ${nameOf(which)} on ${count(many)} samples?`)) return;
  const samples = many === 1 ? { indices: [known.index] } : { list: Object.fromEntries(asked({})), first: from.index, last: known.index };
  anchor = { at, index: known.index };
  await set(which, is, samples).catch((error) => say(error.message));
}

let renewing = new AbortController();

document.addEventListener("tags", async () => {
  renewing.abort();
  renewing = new AbortController();
  const live = () => [...grid.places()].filter(([at]) => row(at));
  try {
    const found = await tagsOf(live().slice(0, 200).map(([at]) => row(at).index), { signal: renewing.signal });
    panel.show();
    if (list.tag) {
      await open({ at: grid.current, isSame: true });
      return;
    }
    for (const [number, { rows }] of blocks) {
      if (!isSeen(number)) blocks.delete(number);
      rows?.forEach((each) => (each.tags = found.get(each.index) ?? each.tags));
    }
    for (const [at, element] of live()) {
      showTags(element, row(at).tags);
      label(element, row(at));
    }
  } catch (error) {
    if (error.name !== "AbortError") say(error.message);
  }
});

// --- keys

function onKey(event, at) {
  const found = tagOfKey(event);
  if (found) {
    event.preventDefault();
    tag(at, found);
  } else if (event.key === "Enter" && event.target === $("grid")) {
    leaveFor();
    const known = row(at);
    if (known) location.assign(there(`/sample/${known.index}`));
  }
}

function toFilter() {
  document.body.classList.add("filtering");
  $("open").setAttribute("aria-expanded", "true");
  $("where").focus();
}

function closeFilter() {
  document.body.classList.remove("filtering");
  $("open").setAttribute("aria-expanded", "false");
}

keys({
  "/": toFilter,
  v: () => showAs(view ? "" : "table"),
  Escape: () => {
    closeFilter();
    document.querySelectorAll("details.menu[open]").forEach((menu) => menu.removeAttribute("open"));
    return false;
  },
});
$("open").addEventListener("click", () => (document.body.classList.contains("filtering") ? closeFilter() : toFilter()));
$("hide").addEventListener("click", closeFilter);
document.addEventListener("click", ({ target }) => {
  document.querySelectorAll("details.menu[open]").forEach((menu) => menu.contains(target) || menu.removeAttribute("open"));
});

tagsOf([]).then(panel.show, (error) => say(error.message));
window.addEventListener("pageshow", (event) => {
  if (event.persisted) open(read()); // tags may have changed on another page
});
open(read());
$("grid").focus({ preventScroll: true });
