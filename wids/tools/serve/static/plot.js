// Small plots as SVG: lines, ranges and stacked areas over numbers, bands over steps. Colours are --s1 to --s8 of style.css.
// A plot fits the width of its place, says its values under the pointer or the arrow keys, and has a title and a
// description for those who do not see it.
import { make } from "./common.js";

const SPACE = "http://www.w3.org/2000/svg";
const [LEFT, RIGHT, TOP, BOTTOM] = [52, 10, 8, 24];

/** An element of SVG. */
export function draw(tag, properties = {}, ...children) {
  const element = document.createElementNS(SPACE, tag);
  for (const [name, value] of Object.entries(properties)) {
    if (value !== undefined && value !== null) element.setAttribute(name, value);
  }
  element.append(...children);
  return element;
}

/** A colour of the row: 0, 1, ... */
export const colour = (k) => `var(--s${(k % 8) + 1})`;

/** A number in few letters: 1.5k, 0.25. */
export function brief(value) {
  const size = Math.abs(value);
  for (const [unit, letter] of [[1e12, "T"], [1e9, "G"], [1e6, "M"], [1e4, "k"]]) {
    if (size >= unit) return `${+(value / (unit === 1e4 ? 1e3 : unit)).toPrecision(3)}${letter}`;
  }
  return size >= 1000 ? Math.round(value).toLocaleString("en") : `${+value.toPrecision(3)}`;
}

/** Round numbers from `low` to `high`, about `count` of them. */
export function ticks(low, high, count, { isWhole = false } = {}) {
  if (!(high > low)) return [low];
  const rough = (high - low) / count;
  const power = 10 ** Math.floor(Math.log10(rough));
  let step = [1, 2, 5, 10].find((k) => k * power >= rough) * power;
  if (isWhole) step = Math.max(1, Math.round(step));
  const found = [];
  for (let k = Math.ceil(low / step); k * step <= high + step * 1e-9; k += 1) found.push(+(k * step).toPrecision(12));
  return found;
}

let number = 0;

/**
 * A plot in `place`, drawn anew when the width changes; returns `{ mark(x) }`, which shows where something is.
 *
 * options:
 *   title, note: what it is, and how it was found; both are said, the note below the plot, too.
 *   xs: numbers, ascending, where the values are; (n,). span: [first, last] of the axis; default those of `xs`.
 *   lines: [{ name, values (n,), colour?, isDashed? }]; null is a gap.
 *   ranges: [{ name, low (n,), high (n,), colour? }]: areas between two lines.
 *   stacks: [{ name, values (n,), colour? }]: areas on each other; each value holds up to the next x.
 *   bands: [{ first, last, row, name, colour? }], rows: instead, stripes from a step to a step, both included.
 *   height; unit of values; xname of the axis; low, high of the values' axis; format(value); xformat(x).
 *   onpick(x): somebody clicked, or pressed Enter, there.
 */
export function plot(place, options) {
  const own = { height: 160, unit: "", xname: "step", xformat: (x) => Math.round(x).toLocaleString("en"), format: brief, ...options };
  const id = `plot-${(number += 1)}`;
  const box = make("div", { class: "plot" });
  const says = make("p", { class: "plot-says soft", "aria-live": "polite" });
  const names = legend(own);
  const note = make("p", { class: "plot-note soft" }, own.note ?? "");
  place.replaceChildren(make("h3", { class: "plot-title" }, own.title), ...[names, box, note, says].filter(Boolean));
  place.removeAttribute("aria-busy");
  const state = { box, says, note, id, width: 0, marked: null };
  const seen = new ResizeObserver(() => {
    if (!box.isConnected) return;
    if (Math.abs(box.clientWidth - state.width) > 1) paint(own, state);
  });
  seen.observe(box);
  paint(own, state);
  return {
    mark(x) {
      state.marked = x;
      move(own, state);
    },
  };
}

function legend({ lines = [], ranges = [], stacks = [] }) {
  const all = [
    ...ranges.map((each, k) => [each, k, "area"]),
    ...lines.map((each, k) => [each, k + ranges.length, each.isDashed ? "dashed" : "line"]),
    ...stacks.map((each, k) => [each, k, "area"]),
  ].filter(([each]) => each.name);
  if (all.length < 2) return null;
  return make(
    "ul",
    { class: "plot-legend" },
    ...all.map(([each, k, kind]) => {
      const key = make("i", { class: kind });
      key.style.setProperty("--key", each.colour ?? colour(k));
      return make("li", {}, key, each.name);
    }),
  );
}

function paint(own, state) {
  const width = Math.max(state.box.clientWidth || 600, 200);
  state.width = state.box.clientWidth;
  const height = own.bands ? TOP + BOTTOM + Math.max(own.rows, 1) * own.bandHeight : own.height;
  const [right, bottom] = [width - RIGHT, height - BOTTOM];
  const xs = own.xs ?? [];
  const span = own.span ?? [xs[0] ?? 0, xs[xs.length - 1] ?? 1];
  const [low, high] = own.bands ? [0, own.rows] : extent(own);
  const x = (value) => LEFT + ((value - span[0]) / (span[1] - span[0] || 1)) * (right - LEFT);
  const y = (value) => bottom - ((value - low) / (high - low || 1)) * (bottom - TOP);
  Object.assign(state, { x, span, top: TOP, bottom });

  const svg = draw("svg", { "data-xs": xs.join(" "), width, height, viewBox: `0 0 ${width} ${height}`, role: "img", tabindex: "0", "aria-labelledby": `${state.id}-t ${state.id}-d` });
  svg.append(draw("title", { id: `${state.id}-t` }, own.title), draw("desc", { id: `${state.id}-d` }, describe(own, span)));
  const axis = draw("g", { class: "axis" });
  if (!own.bands) {
    for (const value of ticks(low, high, Math.max(2, Math.floor((bottom - TOP) / 28)))) {
      axis.append(draw("line", { x1: LEFT, x2: right, y1: y(value), y2: y(value) }), label(own.format(value), LEFT - 6, y(value) + 4, "end"));
    }
  }
  for (const value of ticks(span[0], span[1], Math.max(2, Math.floor(width / 120)), { isWhole: own.xname === "step" })) {
    axis.append(label(own.xformat(value), Math.min(x(value), right - 2), bottom + 16, x(value) > right - 24 ? "end" : "middle"));
  }
  axis.append(draw("line", { class: "base", x1: LEFT, x2: right, y1: bottom + 0.5, y2: bottom + 0.5 }));
  svg.append(axis);
  if (own.bands) paintBands(svg, own, state);
  else paintValues(svg, own, { x, y, xs, span });
  state.rule = draw("line", { class: "rule", y1: TOP, y2: bottom, visibility: "hidden" });
  state.flag = draw("line", { class: "flag", y1: TOP, y2: bottom, visibility: "hidden" });
  svg.append(state.flag, state.rule);
  listen(svg, own, state);
  state.box.replaceChildren(svg);
  move(own, state);
}

const label = (words, x, y, anchor) => draw("text", { x, y, "text-anchor": anchor }, String(words));

function extent({ lines = [], ranges = [], stacks = [], low, high }) {
  const values = [
    ...lines.flatMap((each) => each.values),
    ...ranges.flatMap((each) => [...each.low, ...each.high]),
    ...(stacks.length ? stacks[0].values.map((_, k) => stacks.reduce((sum, each) => sum + (each.values[k] ?? 0), 0)) : []),
  ].filter((value) => Number.isFinite(value));
  let [least, most] = [low ?? Infinity, high ?? -Infinity];
  for (const value of values) [least, most] = [low ?? Math.min(least, value), high ?? Math.max(most, value)];
  if (low === undefined && least > 0 && (stacks.length || least < most / 2)) least = 0;
  if (!Number.isFinite(least) || !Number.isFinite(most)) return [0, 1];
  const room = (most - least) * 0.05;
  if (most > least) return [low ?? (least > 0 && least <= room ? 0 : least && least - room), high ?? most + room];
  return least > 0 ? [0, least * 1.2] : [least, least + 1];
}

function paintValues(svg, own, { x, y, xs, span }) {
  const { lines = [], ranges = [], stacks = [] } = own;
  const ends = xs.map((value, k) => x(xs[k + 1] ?? span[1]));
  let below = xs.map(() => 0);
  stacks.forEach((each, k) => {
    const above = below.map((value, i) => value + (each.values[i] ?? 0));
    const there = xs.map((value, i) => `${x(value)} ${y(above[i])}H${ends[i]}`).join("L");
    const back = xs.map((value, i) => `${ends[i]} ${y(below[i])}H${x(value)}`).reverse().join("L");
    svg.append(draw("path", { class: "area", d: `M${there}L${back}Z`, fill: each.colour ?? colour(k), "data-name": each.name, "data-values": each.values.join(" ") }));
    below = above;
  });
  ranges.forEach((each, k) => {
    const there = xs.map((value, i) => `${x(value)} ${y(each.high[i])}`).join("L");
    const back = xs.map((value, i) => `${x(value)} ${y(each.low[i])}`).reverse().join("L");
    svg.append(draw("path", { class: "range", d: `M${there}L${back}Z`, fill: each.colour ?? colour(k), "data-name": each.name, "data-low": each.low.join(" "), "data-high": each.high.join(" ") }));
  });
  lines.forEach((each, k) => {
    let path = "";
    each.values.forEach((value, i) => {
      if (!Number.isFinite(value)) return;
      path += `${Number.isFinite(each.values[i - 1]) ? "L" : "M"}${x(xs[i])} ${y(value)}`;
      if (xs.length === 1) path += `h${(x(span[1]) - x(span[0])) || 4}`;
    });
    const dashes = each.isDashed ? "5 4" : undefined;
    svg.append(draw("path", { class: "line", d: path, stroke: each.colour ?? colour(k + ranges.length), "stroke-dasharray": dashes, "data-name": each.name, "data-values": each.values.join(" ") }));
  });
}

function paintBands(svg, own, { x, span }) {
  const each = own.bandHeight;
  for (const band of own.bands) {
    const [from, to] = [x(Math.max(band.first, span[0])), x(Math.min(band.last + 1, span[1]))];
    const stripe = draw("rect", { class: "band", x: from, width: Math.max(to - from - 0.5, 1), y: TOP + band.row * each + 1, height: each - 2, rx: 2, fill: band.colour ?? colour(0), "data-name": band.name, "data-first": band.first, "data-last": band.last });
    stripe.append(draw("title", {}, `${band.name}: ${own.xname}s ${own.xformat(band.first)} to ${own.xformat(band.last)}`));
    svg.append(stripe);
  }
}

function describe(own, span) {
  const values = (each) => (each.values ?? [...(each.low ?? []), ...(each.high ?? [])]).filter((value) => Number.isFinite(value));
  const parts = [...(own.lines ?? []), ...(own.ranges ?? []), ...(own.stacks ?? [])].map((each) => {
    const all = values(each);
    if (!all.length) return `${each.name ?? "values"}: none`;
    let [least, most] = [all[0], all[0]];
    for (const value of all) [least, most] = [Math.min(least, value), Math.max(most, value)];
    return `${each.name ?? "values"}: ${own.format(least)}${own.unit} to ${own.format(most)}${own.unit}`;
  });
  if (own.bands) parts.push(`${own.bands.length} bands in ${own.rows} rows`);
  return `${own.xname} ${own.xformat(span[0])} to ${own.xformat(span[1])}. ${parts.join("; ")}. ${own.note ?? ""}`;
}

// --- values under the pointer

function nearest(own, at) {
  const { xs = [], stacks = [] } = own;
  let [low, high] = [0, xs.length - 1];
  while (low < high) {
    const middle = (low + high + 1) >> 1;
    if (xs[middle] <= at) low = middle;
    else high = middle - 1;
  }
  if (!stacks.length && low + 1 < xs.length && xs[low + 1] - at < at - xs[low]) low += 1;
  return low;
}

function tell(own, state, k) {
  const of = (each) => (each.values ? each.values[k] : null);
  const parts = [
    ...(own.ranges ?? []).map((each) => `${each.name}: ${own.format(each.low[k])} to ${own.format(each.high[k])}${own.unit}`),
    ...[...(own.lines ?? []), ...(own.stacks ?? [])].map((each) => `${each.name ? `${each.name}: ` : ""}${Number.isFinite(of(each)) ? own.format(of(each)) + own.unit : "–"}`),
  ];
  const place = own.xs[k];
  const next = own.stacks?.length && own.xs[k + 1] > place + 1 ? ` to ${own.xformat(own.xs[k + 1] - 1)}` : "";
  state.says.textContent = `${own.xname} ${own.xformat(place)}${next} · ${parts.join(" · ")}`;
  state.note.hidden = true;
  state.rule.setAttribute("x1", state.x(place));
  state.rule.setAttribute("x2", state.x(place));
  state.rule.setAttribute("visibility", "visible");
  state.at = k;
}

function listen(svg, own, state) {
  const valueAt = (event) => {
    const box = svg.getBoundingClientRect();
    const part = (event.clientX - box.left - LEFT) / (box.width - LEFT - RIGHT);
    return state.span[0] + Math.min(Math.max(part, 0), 1) * (state.span[1] - state.span[0]);
  };
  const hide = () => {
    state.rule.setAttribute("visibility", "hidden");
    state.says.textContent = "";
    state.note.hidden = false;
    state.at = undefined;
  };
  const has = own.xs?.length;
  if (has) {
    svg.addEventListener("pointermove", (event) => tell(own, state, nearest(own, valueAt(event))));
    svg.addEventListener("pointerleave", hide);
    svg.addEventListener("blur", hide);
  }
  if (own.onpick) svg.classList.add("picks");
  svg.addEventListener("click", (event) => own.onpick?.(has ? own.xs[nearest(own, valueAt(event))] : Math.floor(valueAt(event))));
  svg.addEventListener("keydown", (event) => {
    const by = { ArrowLeft: -1, ArrowRight: 1 }[event.key];
    if (has && by) {
      const k = state.at === undefined ? (by > 0 ? 0 : own.xs.length - 1) : state.at + by;
      tell(own, state, Math.min(Math.max(k, 0), own.xs.length - 1));
    } else if (has && event.key === "Enter" && state.at !== undefined) own.onpick?.(own.xs[state.at]);
    else return;
    event.preventDefault();
    event.stopPropagation();
  });
}

function move(own, state) {
  const isIn = state.marked !== null && state.marked >= state.span[0] && state.marked <= state.span[1];
  state.flag.setAttribute("visibility", isIn ? "visible" : "hidden");
  if (!isIn) return;
  const at = state.x(own.bands ? Math.min(state.marked + 0.5, state.span[1]) : state.marked);
  state.flag.setAttribute("x1", at);
  state.flag.setAttribute("x2", at);
}
