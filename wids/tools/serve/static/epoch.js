// The page of an epoch. What it shows follows from the settings, the rank and the step, which the address holds.
import { ask, count, fail, keys, make, steps, there } from "./common.js";
import { cell } from "./cells.js";
import { brief, colour, plot } from "./plot.js";

const $ = (id) => document.getElementById(id);
// Of a plot; steps in a request; cells at first, and with each click; samples of a key; packs.
const [POINTS, ASKED, SHOWN, FOUND, PACKS] = [400, 100, 60, 100, 32];
const [CUT_SECONDS, LOOK_SECONDS] = [6, 8]; // without being asked for more
const form = $("settings");
const now = { described: null, rank: 0, step: 0, found: null };

// --- the address

function settings() {
  const query = new URLSearchParams();
  for (const { name, value, dataset } of form.elements) {
    if (name && value.trim() !== dataset.default) query.set(name, value.trim());
  }
  return query;
}

function with_(more) {
  const query = settings();
  for (const [name, value] of Object.entries(more)) query.set(name, value);
  return query;
}

function address() {
  const query = settings();
  if (now.rank) query.set("rank", now.rank);
  if (now.step) query.set("step", now.step);
  const label = $("label");
  if (label && label.value !== label.dataset.default) query.set("label", label.value);
  return there(query.size ? `/epoch?${query}` : "/epoch");
}

const remember = () => history.replaceState(null, "", address());

// --- one thing of a kind at a time: a new one stops the one before

const running = {};
function renew(kind) {
  running[kind]?.abort();
  running[kind] = new AbortController();
  return running[kind].signal;
}

function later(kind, milliseconds, work) {
  clearTimeout(later[kind]);
  later[kind] = setTimeout(work, milliseconds);
}

const soon = (milliseconds, signal) =>
  new Promise((resolve, reject) => {
    const timer = setTimeout(resolve, milliseconds);
    signal.addEventListener("abort", () => (clearTimeout(timer), reject(new DOMException("left", "AbortError"))), { once: true });
  });

const label = () => $("label")?.value ?? ""; // the column of classes

// --- errors where they belong

function clear() {
  for (const why of form.querySelectorAll(".why")) why.remove();
  for (const label of form.querySelectorAll(".wrong")) {
    label.classList.remove("wrong");
    label.querySelector("input, select").removeAttribute("aria-invalid");
  }
  $("form-error").hidden = true;
}

function refuse(error) {
  if (error.name === "AbortError") return;
  const name = error.found?.name;
  if (name === "rank" || name === "step") return showPlaceError(error.message);
  const input = name && form.elements[name];
  if (!input) {
    $("form-error").textContent = error.message;
    $("form-error").hidden = false;
    return;
  }
  const label = input.closest("label");
  label.classList.add("wrong");
  input.setAttribute("aria-invalid", "true");
  label.append(make("span", { class: "why", role: "alert" }, error.message));
  const details = label.closest("details");
  if (details) details.open = true;
}

function showPlaceError(words) {
  $("place-error").textContent = words ?? "";
  $("place-error").hidden = !words;
}

// --- the settings

async function begin() {
  const signal = renew("begin");
  for (const kind of ["batch", "plots", "open", "find"]) running[kind]?.abort();
  clear();
  form.setAttribute("aria-busy", "true");
  $("summary").textContent = "…";
  try {
    await describe(signal, CUT_SECONDS);
  } catch (error) {
    if (error.name === "AbortError") return;
    refuse(error);
    $("summary").textContent = "";
    now.described = null;
    $("shown").hidden = true;
    return;
  } finally {
    if (!signal.aborted) form.removeAttribute("aria-busy");
  }
  $("shown").hidden = false;
  remember();
  showBatch();
  showPlots();
}

/** How many steps there are; batches of like length are cut for so many seconds at most. */
async function describe(signal, seconds) {
  const end = Date.now() + seconds * 1000;
  let described = await ask(`/api/epoch?${settings()}`, { signal });
  say(described);
  while (!described.is_whole && Date.now() < end) {
    described = await ask(`/api/epoch?${with_({ more: 1 })}`, { signal });
    say(described);
  }
  if (!described.is_whole) {
    const more = make("button", { type: "button", id: "more-steps", onclick: () => goOn() }, "Cut more");
    $("summary").append(more);
  }
  now.described = described;
  now.rank = Math.min(now.rank, described.world_size - 1);
  now.step = Math.max(Math.min(now.step < 0 ? described.steps + now.step : now.step, described.steps - 1), 0);
}

async function goOn() {
  try {
    await describe(renew("begin"), CUT_SECONDS);
    showPlace();
    showPlots();
  } catch (error) {
    refuse(error);
  }
}

function say(described) {
  const ranks = described.world_size === 1 ? "" : ` on each of ${count(described.world_size)} ranks`;
  const words = [`${count(described.steps)} ${described.steps === 1 ? "step" : "steps"}${ranks}`];
  if (!described.is_whole) {
    words[0] = `the first ${words[0]}: ${Math.floor((100 * described.done) / described.total)} % of the epoch's samples are cut into batches`;
  }
  if (described.too_long) words.push(`${count(described.too_long)} samples ${described.pack_tokens ? "have no token, or too many," : "exceed a budget alone,"} and are in no batch`);
  $("summary").replaceChildren(words.join("; "));
}

// --- the batch

function showPlace() {
  const { steps, world_size } = now.described;
  $("slider").max = Math.max(steps - 1, 0);
  $("slider").value = now.step;
  $("slider").setAttribute("aria-valuetext", `step ${count(now.step)} of ${count(steps)}`);
  if (document.activeElement !== $("step")) $("step").value = now.step;
  if (document.activeElement !== $("rank")) $("rank").value = now.rank;
  $("rank").closest("label").hidden = world_size === 1;
  $("before").disabled = now.step <= 0;
  $("after").disabled = now.step >= steps - 1;
  for (const each of Object.values(drawn)) each.mark(now.step);
}

async function showBatch() {
  if (!now.described) return;
  showPlaceError();
  showPlace();
  const place = $("cells");
  if (!now.described.steps) {
    $("says").textContent = "The epoch has no step.";
    showPacks(null);
    return place.replaceChildren();
  }
  const signal = renew("batch");
  place.classList.add("stale");
  place.setAttribute("aria-busy", "true");
  try {
    const batch = await ask(`/api/epoch/batch?${with_({ rank: now.rank, step: now.step, label: label() })}`, { signal });
    sayBatch(batch);
    showPacks(batch);
    place.replaceChildren();
    place.dataset.step = batch.step;
    place.dataset.rank = batch.rank;
    place.dataset.indices = batch.samples.map((each) => each.index).join(",");
    place.classList.remove("stale");
    showCells(place, batch, 0, signal);
  } catch (error) {
    if (error.name === "AbortError") return;
    place.classList.remove("stale");
    place.removeAttribute("aria-busy");
    if (error.found?.name) refuse(error);
    else fail(place, error);
  }
  later("open", 150, showOpen);
}

function sayBatch(batch) {
  const { samples } = batch;
  const words = [`${count(samples.length)} ${samples.length === 1 ? "sample" : "samples"}`];
  if (batch.pack_tokens) {
    const packs = samples.at(-1).pack + 1;
    const distinct = new Set(samples.map((each) => each.index)).size;
    words[0] = `${count(packs)} ${packs === 1 ? "pack" : "packs"} · ${count(samples.length)} ${samples.length === 1 ? "piece" : "pieces"} of ${count(distinct)} ${distinct === 1 ? "sample" : "samples"}`;
  }
  const repeated = samples.filter((each) => each.is_repeated).length;
  if (repeated) words.push(`${count(repeated)} repeated, to fill up the tail`);
  const shards = new Set(samples.map((each) => each.shard)).size;
  words.push(`of ${count(shards)} ${shards === 1 ? "shard" : "shards"}`);
  if (batch.pack_tokens) words.push(`${count(batch.costs[0])} tokens of ${count(batch.max_tokens)}`);
  else if (batch.costs) words.push(`costs ${brief(batch.costs[0])}${batch.max_tokens ? ` of ${brief(batch.max_tokens)}` : ""}`);
  (batch.limits ?? []).forEach(({ name, most }, k) => words.push(`${brief(batch.sums[k][0])} of ${brief(most)} ${name}`));
  if (batch.padding) words.push(`padding ${batch.padding.toFixed(3)} x`);
  if (batch.batch_size && samples.length < batch.batch_size) words.push("the last batch, which drop_last=True of a loader leaves out");
  $("says").textContent = words.join(" · ");
}

const tokens = ({ piece, length }) => `tokens ${count(piece[0])} to ${count(piece[1])} of ${count(length)}`;

/** A bar for each pack of a batch, as long as it is full; its parts are pieces of samples. */
function showPacks(batch) {
  const place = $("packs");
  place.hidden = !batch?.pack_tokens;
  if (place.hidden) return place.replaceChildren();
  const bars = [];
  batch.samples.forEach((sample, k) => {
    bars[sample.pack] ??= make("div", { class: "pack", role: "group", "aria-label": `pack ${sample.pack}` });
    if (sample.pack >= PACKS) return;
    const words = `sample ${sample.index}: ${tokens(sample)}${sample.is_repeated ? ", repeated" : ""}`;
    const part = make("a", { href: there(`/sample/${sample.index}`), title: words, "aria-label": words, class: sample.index === now.found ? "found" : "" });
    part.style.width = `${(100 * (sample.piece[1] - sample.piece[0])) / batch.pack_tokens}%`;
    part.style.background = colour(k);
    bars[sample.pack].append(part);
  });
  const note = `Packs of ${count(batch.pack_tokens)} tokens, and their pieces${bars.length > PACKS ? `; the first ${PACKS}` : ""}`;
  place.replaceChildren(make("p", { class: "soft" }, note), ...bars.slice(0, PACKS));
}

function wrap(sample, row, batch, k) {
  const tag = sample.is_repeated ? "repeated" : sample.piece ? tokens(sample) : batch.lengths ? `length ${brief(batch.lengths[k])}` : null;
  const element = cell(batch.labels ? { ...row, columns: { [label()]: batch.labels[k] } } : row, { caption: batch.labels && label() });
  element.querySelector("a")?.setAttribute("tabindex", "0");
  const classes = ["sample", sample.is_repeated && "repeated", sample.index === now.found && "found"].filter(Boolean).join(" ");
  return make("div", { class: classes, "data-index": sample.index }, element, tag && make("span", { class: "tag" }, tag));
}

async function showCells(place, batch, from, signal) {
  const part = batch.samples.slice(from, from + SHOWN);
  const elements = part.map((sample, k) => wrap(sample, { index: sample.index, columns: {} }, batch, from + k));
  place.append(...elements);
  const left = batch.samples.length - from - part.length;
  const more = left && make("button", { type: "button", onclick: () => (more.remove(), showCells(place, batch, from + SHOWN, signal)) }, `${count(Math.min(left, SHOWN))} more of ${count(left)}`);
  if (more) place.append(more);
  try {
    await fill(part, elements, (k, row) => wrap(part[k], row, batch, from + k), signal);
  } catch (error) {
    if (error.name === "AbortError") return;
    place.append(make("p", { class: "error", role: "alert" }, error.message));
  }
  place.removeAttribute("aria-busy");
}

/** Ask for what is known of samples, until all of it is here, and put it in the places of the elements. */
async function fill(part, elements, draw, signal) {
  let wanted = part.map((_, k) => k);
  while (wanted.length) {
    const { rows } = await ask(`/api/rows?indices=${wanted.map((k) => part[k].index).join(",")}`, { signal });
    const pending = [];
    rows.forEach((row, i) => {
      const k = wanted[i];
      if (row.is_pending) return pending.push(k);
      const fresh = draw(k, row);
      elements[k].replaceWith(fresh);
      elements[k] = fresh;
    });
    wanted = pending;
    if (wanted.length) await soon(500, signal);
  }
}

function go(step, rank = now.rank) {
  if (!now.described) return;
  const { steps, world_size } = now.described;
  if (!Number.isInteger(step) || step < -steps || step >= steps) return showPlaceError(`There is no step ${step}; steps are 0 to ${count(steps - 1)}.`);
  if (!Number.isInteger(rank) || rank < 0 || rank >= world_size) return showPlaceError(`There is no rank ${rank}; ranks are 0 to ${count(world_size - 1)}.`);
  const isOther = rank !== now.rank;
  now.step = step < 0 ? steps + step : step;
  now.rank = rank;
  remember();
  showBatch();
  if (!isOther) return;
  running.plots?.abort();
  later("plots", 150, showPlots);
}

const number = (text) => (/^\s*[+-]?[0-9][0-9,_ ]*$/.test(text) ? Number(text.replaceAll(/[,_ ]/g, "")) : NaN);

// --- what changes over the steps

const drawn = {}; // id -> plot

function show(id, options) {
  const place = $(id);
  place.hidden = !options;
  if (!options) {
    delete drawn[id];
    return place.replaceChildren();
  }
  drawn[id] = plot(place, { onpick: (x) => go(Math.min(Math.round(x), now.described.steps - 1)), ...options });
  drawn[id].mark(now.step);
}

/** Up to POINTS steps, evenly spread. */
function chosen(steps) {
  const n = Math.min(steps, POINTS);
  return Array.from({ length: n }, (_, k) => (n === 1 ? 0 : Math.floor((k * (steps - 1)) / (n - 1))));
}

/** The numbers 0 .. n - 1, such that the first few are spread evenly too. */
function spread(n) {
  const bits = Math.ceil(Math.log2(Math.max(n, 2)));
  const found = [];
  for (let k = 0; k < 1 << bits; k += 1) {
    let turned = 0;
    for (let bit = 0; bit < bits; bit += 1) turned |= ((k >> bit) & 1) << (bits - 1 - bit);
    if (turned < n) found.push(turned);
  }
  return found;
}

async function showPlots() {
  const { described } = now;
  const signal = renew("plots");
  const progress = $("progress");
  for (const id of ["sources", "costs", "limits", "balance", "lengths", "padding", "samples", "classes", "distinct"]) show(`plot-${id}`, null);
  progress.textContent = "";
  if (!described?.steps) return;
  const isByLength = described.total !== undefined;
  const isMixture = described.sources.length > 0;
  try {
    if (isMixture && !isByLength) await showShares(signal);
    if (isByLength || label()) await showLooks(signal, label());
    else if (!isMixture) progress.textContent = `All batches have ${count(described.batch_size)} samples. Choose a column of classes, or lengths, to see more.`;
  } catch (error) {
    if (error.name === "AbortError") return;
    progress.removeAttribute("aria-busy");
    progress.replaceChildren(make("span", { class: "error", role: "alert" }, error.message));
  }
}

async function showShares(signal) {
  const names = now.described.sources;
  const counts = [];
  let edges = [0];
  const end = Date.now() + LOOK_SECONDS * 1000;
  do {
    const found = await ask(`/api/epoch/shares?${with_({ from: counts.length })}`, { signal });
    edges = found.edges;
    counts.push(...found.counts);
  } while (counts.length < edges.length && Date.now() < end);
  const n = counts.length - 1;
  const part = (k, i) => counts[k + 1][i] - counts[k][i];
  const totals = Array.from({ length: n }, (_, k) => names.reduce((sum, _name, i) => sum + part(k, i), 0));
  const each = Math.ceil(now.described.steps / Math.max(edges.length - 1, 1));
  show("plot-sources", {
    title: "Sources of the mixture",
    note: `Shares of what all ranks read in ${each === 1 ? "each step" : `each stretch of ${count(each)} steps or fewer`}, counted exactly; ${asked(names)}${n < edges.length - 1 ? `. Up to step ${count(edges[n])} of ${count(now.described.steps)}: counting takes long here` : ""}.`,
    xs: edges.slice(0, n),
    span: [0, edges[n]],
    stacks: names.map(({ name }, i) => ({ name, values: totals.map((total, k) => (total ? (100 * part(k, i)) / total : 0)) })),
    low: 0,
    high: 100,
    unit: " %",
  });
}

const asked = (names) => `asked for are ${names.slice(0, 8).map(({ name, share }) => `${name} ${brief(100 * share)} %`).join(", ")}${names.length > 8 ? ", ..." : ""}`;

async function showLooks(signal, label) {
  const steps = chosen(now.described.steps);
  const order = spread(steps.length).map((k) => steps[k]);
  const looks = new Map();
  const state = { names: [], ranks: 1, label };
  const end = Date.now() + LOOK_SECONDS * 1000;
  const progress = $("progress");
  progress.setAttribute("aria-busy", "true");
  let left = order;
  const look = async (until) => {
    while (left.length && Date.now() < until) {
      const found = await ask(`/api/epoch/looks?${with_({ rank: now.rank, label, steps: left.slice(0, ASKED).join(",") })}`, { signal });
      for (const each of found.looks) looks.set(each.step, each);
      left = left.slice(found.looks.length);
      Object.assign(state, { names: found.names, ranks: found.ranks });
      progress.textContent = left.length ? `${count(looks.size)} of ${count(steps.length)} steps …` : "";
      drawLooks([...looks.values()].sort((one, other) => one.step - other.step), state);
    }
    progress.removeAttribute("aria-busy");
    if (left.length) {
      const more = make("button", { type: "button", onclick: () => look(Date.now() + LOOK_SECONDS * 1000).catch((error) => fail(progress, error)) }, "Look at more");
      progress.replaceChildren(`${count(looks.size)} steps were looked at, evenly spread; ${count(left.length)} more that were chosen are left out, for it takes long here. `, more);
    }
  };
  await look(end);
}

function drawLooks(looks, { names, ranks, label }) {
  const { described } = now;
  const xs = looks.map((each) => each.step);
  const span = [0, Math.max(described.steps - 1, 1)];
  const all = looks.length === described.steps;
  const how = all ? "Each step" : `${count(looks.length)} of ${count(described.steps)} steps, evenly spread`;
  const ours = described.world_size === 1 ? "" : `; the batches of rank ${now.rank}`;
  const base = { xs, span };
  const column = (name) => looks.map((each) => each[name] ?? null);
  if (looks.some((each) => each.costs)) {
    const unit = described.has_lengths ? "tokens" : "samples";
    const some = ranks < described.world_size ? ` of the first ${count(ranks)} of ${count(described.world_size)} ranks` : "";
    const most = Math.max(...looks.flatMap((each) => each.costs));
    const bound = described.max_tokens && described.max_tokens < 4 * most ? [{ name: described.pack_tokens ? "full" : "max tokens", values: xs.map(() => described.max_tokens), isDashed: true, colour: "var(--soft)" }] : [];
    const means = looks.map((each) => each.costs.reduce((sum, value) => sum + value, 0) / each.costs.length);
    const tops = looks.map((each) => Math.max(...each.costs));
    const lines = ranks <= 8
      ? Array.from({ length: ranks }, (_, rank) => ({ name: `rank ${rank}`, values: looks.map((each) => each.costs[rank]) }))
      : [{ name: "mean", values: means, colour: colour(0) }];
    show("plot-costs", {
      ...base,
      title: described.pack_tokens ? "Tokens of a batch" : `Cost of a batch, in ${unit}`,
      note: `${how}${some}.${described.is_padded && described.has_lengths ? " With its padding." : ""}`,
      lines: [...lines, ...bound],
      ranges: ranks > 8 ? [{ name: "least to most of the ranks", low: looks.map((each) => Math.min(...each.costs)), high: tops, colour: colour(0) }] : [],
    });
    if (described.limits?.length) {
      const shares = (k, most) => looks.map((each) => (100 * each.sums[k].reduce((sum, value) => sum + value, 0)) / each.sums[k].length / most);
      show("plot-limits", { ...base, title: "Limits: the share that a batch uses", note: `${how}${some}. The mean of the ranks.`, lines: described.limits.map(({ name, most }, k) => ({ name: `${name}, of ${brief(most)}`, values: shares(k, most) })), low: 0, high: 100, unit: " %" });
    }
    if (described.world_size > 1) {
      show("plot-balance", { ...base, title: "Balance: the costliest batch of a step, by the mean of its ranks", note: `${how}${some}. All ranks wait for it.`, lines: [{ name: "most / mean", values: looks.map((_, k) => (means[k] ? tops[k] / means[k] : 1)) }], unit: " x" });
    }
    const things = described.pack_tokens ? "Pieces" : "Samples";
    show("plot-samples", { ...base, title: `${things} in a batch`, note: `${how}${ours}.`, lines: [{ name: things.toLowerCase(), values: column("samples") }] });
  }
  if (looks.some((each) => each.lengths)) {
    const of = (k) => looks.map((each) => each.lengths?.[k] ?? 0);
    show("plot-lengths", { ...base, title: "Lengths in a batch", note: `${how}${ours}.`, ranges: [{ name: "shortest to longest", low: of(0), high: of(2), colour: colour(2) }], lines: [{ name: "mean", values: of(1), colour: colour(2) }] });
    show("plot-padding", { ...base, title: "Padding: tokens with it, by those without", note: `${how}; all ranks that are looked at.`, lines: [{ name: "padded / real", values: column("padding"), colour: colour(3) }], unit: " x" });
  }
  if (looks.some((each) => each.sources)) {
    const totals = looks.map((each) => each.sources.reduce((sum, value) => sum + value, 0));
    show("plot-sources", { ...base, span: [0, described.steps], title: "Sources of the mixture", note: `${how}; ${asked(described.sources)}.`, stacks: described.sources.map(({ name }, i) => ({ name, values: looks.map((each, k) => (totals[k] ? (100 * each.sources[i]) / totals[k] : 0)) })), low: 0, high: 100, unit: " %" });
  }
  if (looks.some((each) => each.classes)) {
    const shares = names.map((name, i) => ({ name, values: looks.map((each) => (100 * each.classes.counts[i]) / Math.max(each.samples, 1)) }));
    const rest = looks.map((_, k) => Math.max(100 - shares.reduce((sum, each) => sum + each.values[k], 0), 0));
    if (rest.some((value) => value > 1e-9)) shares.push({ name: "others", values: rest, colour: "var(--line)" });
    show("plot-classes", { ...base, span: [0, described.steps], title: `Classes in a batch: ${label}`, note: `${how}${ours}.`, stacks: shares, low: 0, high: 100, unit: " %" });
    show("plot-distinct", { ...base, title: `Different classes in a batch: ${label}`, note: `${how}${ours}.`, lines: [{ name: "classes", values: looks.map((each) => each.classes.distinct), colour: colour(4) }], low: 0 });
  }
}

// --- open shards

/** A row for each band, such that those of a row do not overlap; returns how many rows there are. */
function arrange(bands) {
  const ends = [];
  for (const band of bands) {
    let row = ends.findIndex((end) => end < band.first);
    if (row < 0) row = ends.length;
    ends[row] = band.last;
    band.row = row;
    band.colour = colour(band.shard);
    band.name = `shard ${band.shard}, ${band.name}`;
  }
  return ends.length;
}

async function showOpen() {
  const place = $("open");
  const key = `${settings()} ${now.rank}`;
  const { first, last, steps } = showOpen.shown ?? {};
  const margin = first > 0 || last < steps ? (last - first) / 10 : 0;
  const isIn = showOpen.key === key && now.step >= first + (first > 0 ? margin : 0) && now.step < last - (last < steps ? margin : 0);
  if (isIn && drawn.open) return drawn.open.mark(now.step);
  const signal = renew("open");
  place.setAttribute("aria-busy", "true");
  try {
    const found = await ask(`/api/epoch/open?${with_({ rank: now.rank, step: now.step })}`, { signal });
    Object.assign(showOpen, { key, shown: found });
    const rows = arrange(found.bands);
    const all = found.first === 0 && found.last === found.steps;
    const shards = new Set(found.bands.map((band) => band.shard)).size;
    drawn.open = plot(place, {
      title: `Open shards${now.described.world_size === 1 ? "" : ` of rank ${found.rank}`}`,
      note: `${count(shards)} ${shards === 1 ? "shard" : "shards"}, ${rows} at a time at most, from their first sample to their last one; ${all ? "all steps" : `steps ${count(found.first)} to ${count(found.last - 1)} of ${count(found.steps)}, around the one that is shown`}.`,
      bands: found.bands,
      rows,
      bandHeight: rows > 24 ? 6 : rows > 8 ? 10 : 16,
      span: [found.first, found.last],
      onpick: (x) => go(Math.min(x, found.last - 1)),
    });
    drawn.open.mark(now.step);
  } catch (error) {
    delete drawn.open;
    fail(place, error);
  }
}

// --- when is a sample read

async function find(text, { isJump = false } = {}) {
  const place = $("found");
  const signal = renew("find");
  place.replaceChildren();
  if (!text) return;
  place.setAttribute("aria-busy", "true");
  const words = [];
  try {
    const indices = /^(0|[1-9][0-9]*)$/.test(text) ? [text] : await findKey(text, words, signal);
    const found = await ask(`/api/epoch/find?${with_({ samples: indices.slice(0, FOUND).join(",") })}`, { signal });
    if (indices.length > FOUND) words.push(`These are the first ${count(FOUND)} samples with this key.`);
    if (!found.is_whole) words.push("Of the epoch, only the steps that are known were looked at.");
    place.removeAttribute("aria-busy");
    place.replaceChildren(...found.samples.flatMap(tell), ...words.map((each) => make("p", { class: "soft" }, each)));
    const [first] = found.samples.filter((each) => each.readings.length);
    if (isJump && first) jump(first.index, first.readings[0]);
  } catch (error) {
    fail(place, error);
  }
}

/** The indices of the samples with a key. */
async function findKey(key, words, signal) {
  let last;
  for await (const step of steps(`/api/find?key=${encodeURIComponent(key)}`, signal)) {
    last = step;
    if (step.done < step.shards) $("found").replaceChildren(make("p", { class: "soft" }, `looking for the key: ${count(step.done)} of ${count(step.shards)} shards …`));
  }
  if (!last?.indices) throw new Error("the search ended early: does wids serve still run?");
  const failed = last.errors ? `${count(last.errors)} ${last.errors === 1 ? "shard" : "shards"} could not be read: ${last.why[0]}` : "";
  if (!last.found) throw new Error(`no sample has the key ${JSON.stringify(key)}${failed && `; ${failed}`}`);
  if (failed) words.push(failed);
  return last.indices;
}

function tell({ index, times, readings }) {
  const head = make("h3", {}, make("a", { href: there(`/sample/${index}`) }, `sample ${count(index)}`), times ? "" : ": not read in this epoch");
  const more = times > readings.length ? make("p", { class: "soft" }, `and ${count(times - readings.length)} times more`) : null;
  const list = readings.map((one) => {
    const rank = now.described?.world_size === 1 ? "" : `rank ${one.rank} · `;
    const words = `${rank}step ${count(one.step)} · place ${one.place}${one.piece ? ` · pack ${one.pack}, ${tokens(one)}` : ""}${one.is_repeated ? " · repeated" : ""}`;
    const href = there(`/epoch?${with_({ rank: one.rank, step: one.step })}`);
    const follow = (event) => {
      if (event.ctrlKey || event.metaKey || event.shiftKey) return;
      event.preventDefault();
      jump(index, one);
      $("batch").scrollIntoView({ block: "start" });
    };
    return make("li", {}, make("a", { class: "button", href, onclick: follow }, words));
  });
  return [head, list.length ? make("ul", {}, ...list) : null, more].filter(Boolean);
}

function jump(index, { rank, step }) {
  now.found = index;
  go(step, rank);
}

// --- what people do

form.addEventListener("submit", (event) => {
  event.preventDefault();
  begin();
});
form.addEventListener("change", begin);
$("slider").addEventListener("input", () => go(Number($("slider").value)));
$("step").addEventListener("change", () => go(number($("step").value)));
$("rank").addEventListener("change", () => go(now.step, number($("rank").value)));
for (const id of ["step", "rank"]) {
  $(id).addEventListener("keydown", (event) => {
    if (event.key === "Enter") go(number($("step").value), number($("rank").value));
    const by = { ArrowUp: 1, ArrowDown: -1 }[event.key];
    if (!by) return;
    event.preventDefault();
    const value = number($(id).value) + by;
    const most = id === "step" ? now.described.steps : now.described.world_size;
    if (value < 0 || value >= most) return;
    $(id).value = value;
    go(number($("step").value), number($("rank").value));
  });
}
const turn = (by) => now.described && now.step + by >= 0 && now.step + by < now.described.steps && go(now.step + by);
$("before").addEventListener("click", () => turn(-1));
$("after").addEventListener("click", () => turn(1));
$("label")?.addEventListener("change", () => {
  remember();
  showBatch();
  showPlots();
});
$("find").addEventListener("submit", (event) => {
  event.preventDefault();
  find($("find").elements.sample.value.trim());
});
keys({
  ArrowLeft: () => turn(-1),
  ArrowRight: () => turn(1),
  Home: () => go(0),
  End: () => now.described && go(now.described.steps - 1),
  n: () => now.described && now.rank + 1 < now.described.world_size && go(now.step, now.rank + 1),
  p: () => now.rank && go(now.step, now.rank - 1),
  "/": () => $("find").elements.sample.focus(),
});
addEventListener("popstate", () => location.reload());

const given = new URLSearchParams(location.search);
now.rank = Math.max(number(given.get("rank") ?? "0") || 0, 0);
now.step = number(given.get("step") ?? "0") || 0;
if (given.has("label") && $("label")) $("label").value = given.get("label");
for (const details of form.querySelectorAll("details")) {
  details.open = [...details.querySelectorAll("input, select")].some((input) => input.value !== input.dataset.default);
}
await begin();
if (given.get("sample")) {
  $("find").elements.sample.value = given.get("sample");
  await find(given.get("sample"), { isJump: true });
}
