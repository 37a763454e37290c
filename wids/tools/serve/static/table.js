// Samples as lines of a table: what is known of each beside its picture. `columns(found)` are those of a data set, `head` and
// `line` are made of them.
import { ask, count, make, say, size, there } from "./common.js";
import { drawFace, showTags, soon, watch } from "./cells.js";

export const HIGH = 44; // pixels of a line
export const HEAD = 34; // of the head
const MOST = 60; // columns of values
const KEPT = 500; // lines whose fields were read last
const DRAWN = ["image", "video", "array"];
// A sample's own, which stand first.
const OWN = ["index", "key", "shard", "row"];
const WIDE = 170;
const OF_FIELD = "Values of fields are read as they come into sight, so they have no order. A column has one: wids columns create";

/** The names of the classes that the numbers of a column are; none: they are none. */
export const classesOf = (name, classes) => (["cls", "label", "class", "target"].includes(name.toLowerCase()) ? classes : []);

/** The columns of a table: `{name, words, width, isNumber, kind, unsortable}`; `found`: the answer of /api/columns. */
export function columns(found) {
  const known = new Map(found.columns.map((each) => [each.name, each]));
  const own = (name, width, isNumber) => ({ name, width, isNumber, kind: "own", unsortable: name === "index" ? "" : known.get(name)?.unsortable ?? "There is no column of it: wids columns create" });
  const values = found.words ? [] : found.columns.filter(({ name }) => !OWN.includes(name));
  const parts = values.slice(0, MOST).map(({ name, type, unsortable }) => {
    const classes = classesOf(name, found.classes ?? []);
    const isNumber = !classes.length && /^u?int|^double|^float|^half/.test(type);
    return { name, kind: "column", unsortable, classes, isNumber, width: isNumber || type === "bool" ? 110 : classes.length ? 140 : WIDE };
  });
  const fields = found.fields.map((name) => ({ name, width: 130, kind: "field", unsortable: OF_FIELD }));
  return [{ name: "", width: 56, kind: "face" }, own("index", 90, true), { name: "tags", width: 84, kind: "tags", unsortable: "Tags have no order; their menu shows the samples of one" }, own("key", WIDE), ...parts, ...fields, own("shard", 80, true)];
}

export const template = (all) => all.map(({ width, kind, name }) => (name === "key" && kind === "own" ? `minmax(${width}px, 1fr)` : kind === "column" && width === WIDE ? `minmax(${width}px, .7fr)` : `${width}px`)).join(" ");
export const width = (all) => all.reduce((sum, each) => sum + each.width, 0);

/** The first line: a click on a name sorts by it, up, down, and not at all. */
export function head(all, { sort, desc }, onsort) {
  const cells = all.map(({ name, isNumber, kind, unsortable }) => {
    const cell = make("div", { role: "columnheader", class: isNumber ? "number" : undefined });
    if (kind === "face") return cell.setAttribute("aria-label", "Picture"), cell;
    const isSorted = sort === name && kind !== "field";
    if (!unsortable) cell.setAttribute("aria-sort", isSorted ? (desc ? "descending" : "ascending") : "none");
    const next = !isSorted ? { sort: name, desc: false } : desc ? { sort: "", desc: false } : { sort: name, desc: true };
    const words = unsortable || (!isSorted ? "Sort, smallest first" : desc ? "In the order of the data set" : "Sort, largest first");
    cell.append(make("button", { type: "button", class: "plain", title: `${name}: ${words}`, "aria-disabled": unsortable ? "true" : undefined, onclick: () => (unsortable ? say(unsortable) : onsort(next)) },
      make("bdi", {}, name), isSorted ? make("span", { "aria-hidden": "true" }, desc ? " ↓" : " ↑") : ""));
    return cell;
  });
  return make("div", { class: "head", role: "row", "aria-rowindex": "1" }, ...cells);
}

const values = new Map(); // index -> what its small fields say, used last at the end

async function valuesOf(row, signal) {
  const found = values.get(row.index) ?? (await soon(() => ask(`/api/values/${row.index}`, { signal }), signal));
  values.delete(row.index);
  values.set(row.index, found);
  if (values.size > KEPT) values.delete(values.keys().next().value);
  return found;
}

function valueOf(value, classes) {
  if (value === null || value === undefined) return make("span", { class: "soft" }, "–");
  if (classes[value] !== undefined) return make("bdi", {}, `${classes[value]} (${value})`);
  if (typeof value === "number") return Number.isInteger(value) ? String(value) : String(Number(value.toPrecision(7)));
  if (typeof value === "boolean") return value ? "yes" : "no";
  return make("bdi", {}, value);
}

/** The line of a row of /api/rows, or of `{index}` alone; `onopen`: its link is followed. */
export function line(row, all, onopen) {
  const fields = new Map(); // folded name -> cells
  const face = make("div", { class: "face" });
  const link = () => make("a", { href: there(`/sample/${row.index}`), tabindex: "-1", draggable: "false", onclick: onopen, title: row.key }, make("bdi", {}, row.key ?? `sample ${row.index}`));
  const sizes = new Map(Object.entries(row.fields ?? {}).map(([name, bytes]) => [name.toLowerCase(), bytes]));
  const cells = all.map(({ name, isNumber, kind, classes }) => {
    const cell = make("div", { role: "gridcell", class: isNumber ? "number" : undefined });
    if (kind === "face") cell.append(face);
    else if (kind === "tags") cell.classList.add("tags");
    else if (name === "index" && kind === "own") cell.append(row.index === "" ? "" : count(row.index));
    else if (row.error || !row.fields) return cell;
    else if (name === "key" && kind === "own") cell.append(link());
    else if (kind === "own") cell.append(count(row.shard));
    else if (kind === "column") cell.append(valueOf(row.columns[name], classes));
    else if (sizes.has(name)) {
      cell.append(make("span", { class: "soft" }, size(sizes.get(name))));
      fields.set(name, cell);
    }
    cell.title = kind === "face" ? "" : cell.textContent;
    return cell;
  });
  const element = make("div", { class: "line", "data-index": String(row.index) }, ...cells);
  if (row.error) element.append(make("p", { class: "error why", role: "gridcell", title: row.error }, row.error));
  else if (!row.fields) element.setAttribute("aria-busy", "true");
  showTags(element, row.tags ?? []);
  watch(element, (signal) => {
    if (!row.fields) return;
    if (row.main && DRAWN.includes(row.main.kind)) drawFace(face, row, signal);
    if (fields.size) valuesOf(row, signal).then((found) => show(found, fields), () => undefined);
  });
  return element;
}

function show(found, fields) {
  for (const [name, text] of Object.entries(found)) {
    const cell = fields.get(name.toLowerCase());
    if (!cell) continue;
    cell.replaceChildren(make("bdi", {}, text));
    cell.title = text;
  }
}
