// The first page: what the index says, then what is found in member tables while they are looked at.
import { cell } from "./cells.js";
import { ask, count, fail, make, size } from "./common.js";

const place = (id) => document.getElementById(id);
const STRIP = 12;
const AGAIN_MS = 500;
const percent = (share) => `${(100 * share).toPrecision(share > 0.9995 ? 4 : 3).replace(/\.?0+$/, "")} %`;
const bytes = (number) => (number === 1 ? "1 byte" : size(number));
const some = (number, noun) => `${count(number)} ${noun}${number === 1 ? "" : "s"}`;

function fact(title, words) {
  return make("div", {}, make("dt", {}, title), make("dd", {}, words));
}

function pairs(rows) {
  const list = make("dl", { class: "pairs" });
  for (const [title, words] of rows) {
    if (words !== null && words !== undefined) list.append(make("dt", {}, title), make("dd", {}, words));
  }
  return list;
}

/** Bars of shares: rows of [name, share from 0 to 1, words]. */
function shares(rows) {
  const grid = make("div", { class: "shares" });
  const most = Math.max(...rows.map(([, share]) => share), 1e-9);
  for (const [name, share, words] of rows) {
    const bar = make("i");
    bar.style.width = `${(100 * share) / most}%`;
    grid.append(make("span", { title: name }, name), make("div", { class: "bar", "aria-hidden": "true" }, bar), make("span", { class: "number" }, words));
  }
  return grid;
}

const left = (number, noun) => (number ? make("p", { class: "soft" }, `and ${some(number, `more ${noun}`)}`) : null);

function section(id, title, ...children) {
  place(id).replaceChildren(make("h2", {}, title), ...children.filter(Boolean));
  place(id).hidden = false;
}

/** How many members have which size, in bins of [from, below, count]; heights are roots, so that rare sizes are seen. */
function histogram(field) {
  const space = "http://www.w3.org/2000/svg";
  const svg = document.createElementNS(space, "svg");
  const bins = field.bins;
  svg.setAttribute("viewBox", `0 0 ${bins.length * 10} 56`);
  svg.setAttribute("preserveAspectRatio", "none");
  svg.setAttribute("class", "histogram");
  svg.setAttribute("role", "img");
  svg.setAttribute("aria-label", `sizes of ${field.name}: ${size(field.least)} to ${size(field.largest)}, ${size(Math.round(field.mean))} on average`);
  const most = Math.max(...bins.map(([, , number]) => number));
  bins.forEach(([from, below, number], k) => {
    const bar = document.createElementNS(space, "rect");
    const height = number ? Math.max(2, 54 * Math.sqrt(number / most)) : 1;
    for (const [name, value] of Object.entries({ x: k * 10 + 0.7, y: 56 - height, width: 8.6, height })) bar.setAttribute(name, value);
    if (!number) bar.setAttribute("class", "floor");
    const title = document.createElementNS(space, "title");
    title.textContent = `${size(Math.round(from))} to ${size(Math.round(below))}: ${some(number, "sample")}`;
    bar.append(title);
    svg.append(bar);
  });
  return svg;
}

function fieldCard(field) {
  const card = make("article", { class: "card field" },
    make("h3", {}, make("span", { class: "mono" }, field.name), make("span", { class: "soft" }, `${percent(field.share)} of samples`)),
    make("p", {}, field.least === field.largest ? `${bytes(field.least)} each` : `${size(Math.round(field.mean))} on average`));
  if (field.least !== field.largest) {
    card.append(histogram(field), make("div", { class: "ends" }, make("span", {}, size(field.least)), make("span", {}, size(field.largest))));
  }
  return card;
}

function showIndex(found) {
  place("shards").textContent = count(found.shards);
  const list = place("summary");
  if (found.bytes !== null) list.append(fact(found.view_of === undefined ? "bytes" : "in whole shards", size(found.bytes)));
  if (found.bytes_per_sample) list.append(fact("a sample", size(Math.round(found.bytes_per_sample))));
  if (found.bytes_per_shard) list.append(fact("a shard", size(Math.round(found.bytes_per_shard))));
  if (found.samples_per_shard) list.append(fact("samples a shard", count(Math.round(found.samples_per_shard * 10) / 10)));
  if (found.made_by !== undefined) {
    const whole = `${some(found.of_samples, "sample")} in ${some(found.of_shards, "shard")}`;
    place("view").replaceChildren(
      make("p", {}, make("strong", {}, "A view"), found.view_of ? " of " : "", found.view_of ? make("code", {}, found.view_of) : "", `, which has ${whole}`),
      make("ol", {}, ...found.made_by.map((step) => make("li", {}, make("code", {}, String(step))))));
    place("view").hidden = false;
  }
  if (found.mixture) {
    const samples = found.mixture.reduce((sum, part) => sum + part.samples, 0);
    const passes = (part) => (part.samples ? `, ${((part.share * samples) / part.samples).toPrecision(3)} passes` : "");
    section("mixture", "Mixture", make("p", { class: "soft" }, "The shares of an epoch, and how often it reads each sample on average."),
      make("div", { class: "card" }, shares(found.mixture.map((part) => [part.name ?? "", part.share, `${percent(part.share)}${passes(part)}`]))),
      left(found.mixture_left, "source"));
  }
  if (found.datasets.length) {
    const rows = found.datasets.map((part) => make("tr", {}, make("td", {}, part.name ?? "(no name)"),
      ...[part.shards, part.samples].map((number) => make("td", { class: "number" }, number === null ? "?" : count(number))),
      make("td", { class: "number" }, part.bytes === null ? "?" : size(part.bytes))));
    const head = make("tr", {}, make("th", {}, "name"), ...["shards", "samples", "size"].map((title) => make("th", { class: "number" }, title)));
    section("datasets", "Sub-datasets", make("div", { class: "card scroll" }, make("table", {}, make("thead", {}, head), make("tbody", {}, ...rows))),
      left(found.datasets_left, "sub-dataset"));
  }
  const known = (number) => (number === found.shards ? "of all shards" : number ? `of ${count(number)} of ${count(found.shards)} shards` : "none");
  place("index").replaceChildren(pairs([
    ["name", found.name === null ? null : String(found.name)],
    ["info", found.info === null ? null : make("span", {}, typeof found.info === "string" ? found.info : JSON.stringify(found.info).slice(0, 2000))],
    ["base", found.base === null ? null : String(found.base)],
    ["first shard", found.first_shard === null ? null : make("code", {}, found.first_shard)],
    ["last shard", found.last_shard === null ? null : make("code", {}, found.last_shard)],
    ["sizes", known(found.with_filesize)],
    ["CRC-32", known(found.with_crc32)],
    ["MD5", known(found.with_md5sum)],
    ["packs of member tables", found.packs ? count(found.packs) : null],
  ]));
  place("index").removeAttribute("aria-busy");
}

function showSamples(found) {
  const fields = place("fields");
  fields.replaceChildren(...found.fields.map(fieldCard));
  const words = [];
  if (found.samples) words.push(`From the member tables of ${found.shards === found.chosen ? "" : `${count(found.shards)} of `}${some(found.chosen, "shard")} spread over the set: ${some(found.samples, "sample")}.`);
  if (found.absent) words.push(`${some(found.absent, "shard")} of those looked at: neither on this machine nor with a published table (wids index create --members publishes them).`);
  if (found.failed) words.push(`${count(found.failed)} failed: ${found.errors.join("; ")}`);
  if (!found.is_done) words.push("Looking…");
  if (found.fields_left) words.push(`And ${some(found.fields_left, "more field")}.`);
  place("looked").textContent = words.join(" ");
  place("looked").classList.toggle("error", found.failed > 0);
  if (found.is_done) fields.removeAttribute("aria-busy");
  const classes = found.classes;
  if (!classes) return;
  const total = classes.samples;
  const label = (row) => (row.name ? `${row.name} (${row.label})` : row.label);
  const about = total ? `${some(classes.count, "class").replace("classs", "classes")} as far as is known, ${classes.per_shard.toPrecision(3)} a shard on average, by ${some(total, "label")} of ${some(classes.shards, "shard")}.${classes.is_sorted ? " Sorted by class: wids pack --shuffle mixes them." : ""}` : `The index names ${count(classes.count)}.`;
  section("classes", "Classes", make("p", { class: "soft" }, about),
    classes.labels.length ? make("div", { class: "card" }, shares(classes.labels.map((row) => [label(row), row.samples / total, `${count(row.samples)} · ${percent(row.samples / total)}`]))) : null,
    classes.labels_left ? make("p", { class: "soft" }, `and ${count(classes.labels_left)} more`) : null);
}

async function look() {
  try {
    const found = await ask("/api/overview/samples");
    showSamples(found);
    if (!found.is_done) setTimeout(look, AGAIN_MS);
  } catch (error) {
    fail(place("fields"), error);
  }
}

/** The first samples; those whose member table is still on its way are asked for again. */
async function showStrip(indices = null) {
  const strip = place("strip");
  try {
    const { rows } = await ask(indices === null ? `/api/rows?start=0&count=${STRIP}` : `/api/rows?indices=${indices.join(",")}`);
    strip.hidden = !rows.length && indices === null;
    for (const row of rows) {
      const before = strip.querySelector(`[data-index="${row.index}"]`);
      if (before) before.replaceWith(cell(row));
      else strip.append(cell(row));
    }
    const pending = rows.filter((row) => row.is_pending).map((row) => row.index);
    if (pending.length) setTimeout(showStrip, 2 * AGAIN_MS, pending);
  } catch (error) {
    strip.hidden = false;
    fail(strip, error);
  }
}

ask("/api/overview").then(showIndex).catch((error) => fail(place("index"), error));
look();
showStrip();
