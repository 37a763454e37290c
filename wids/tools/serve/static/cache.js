// The cache page: asks once a second for what has changed, while the page is seen.
import { ask, count, fail, make, size } from "./common.js";

const place = (id) => document.getElementById(id);
const EVERY_MS = 1000;
const MOST_SAMPLES = 3600;
const MOST_EVENTS = 200;
const DIGEST = /^([0-9a-f]{8})[0-9a-f]{24}-/;

let boot = "";
let revision = 0;
let lastChange = 0;
let order = [];
const rows = new Map(); // by number: { row, element, cells }
const speeds = new Map(); // by download: { bytes, seconds, rate }
const samples = []; // { seconds, bytes, limit }
let timer;

function ago(seconds) {
  if (seconds < 2) return "now";
  if (seconds < 120) return `${Math.round(seconds)} s`;
  if (seconds < 7200) return `${Math.round(seconds / 60)} min`;
  if (seconds < 172800) return `${Math.round(seconds / 3600)} h`;
  return `${Math.round(seconds / 86400)} days`;
}

const clock = (seconds) => new Date(1000 * seconds).toLocaleTimeString("en-GB");
const plural = (number, noun) => `${count(number)} ${noun}${number === 1 ? "" : "s"}`;

const urls = new Map(); // of the dataset's shards, by the names of their files

/** The name of a shard: as the dataset has it, with the folder that it is in, or as its file is called. */
const nameOf = (name) => urls.get(name)?.split("/").slice(-2).join("/") ?? name.replace(DIGEST, "");

function named(name) {
  if (urls.has(name)) return make("span", { class: "mono", title: urls.get(name) }, nameOf(name));
  const digest = DIGEST.exec(name);
  const found = make("span", { class: "mono", title: name });
  if (digest) found.append(make("span", { class: "digest", "aria-hidden": "true" }, digest[1]));
  found.append(digest ? name.slice(digest[0].length) : name);
  return found;
}

const sum = (jobs, figure) => jobs.reduce((total, job) => total + (job.figures[figure] ?? 0), 0);

/** Openings that found their shard in the cache, as a share of all that needed one there; null: none yet. */
function hitRate(jobs) {
  const hits = sum(jobs, "hits");
  const all = hits + sum(jobs, "fetches") - sum(jobs, "fetched_ahead");
  return all > 0 ? hits / all : null;
}

function showFacts(found, limits) {
  const rate = hitRate(found.jobs);
  const limit = limits.length ? Math.min(...limits) : null;
  const pairs = [
    ["shards", count(found.shards)],
    ["used", size(found.used_bytes)],
    ["free on the disk", `${size(found.free_bytes)} of ${size(found.disk_bytes)}`],
    ["open", found.sees_all ? count(found.open) : `${count(found.open)} or more`],
  ];
  if (found.jobs.length || found.plans) {
    pairs.push(["limit", limits.length > 1 ? limits.map(size).join(", ") : limit !== null ? `${size(limit)} · ${Math.round((100 * found.used_bytes) / limit)} %` : "none"]);
    pairs.push(["jobs with a plan", count(found.plans)]);
  }
  if (rate !== null) pairs.push(["openings found here", `${(100 * rate).toFixed(rate > 0.995 && rate < 1 ? 2 : 0)} %`]);
  const ranges = sum(found.jobs, "range_requests");
  if (ranges) pairs.push(["read by ranges", `${size(sum(found.jobs, "range_bytes"))} · ${plural(ranges, "request")}`]);
  place("summary").replaceChildren(...pairs.map(([title, words]) => make("div", {}, make("dt", {}, title), make("dd", {}, words))));
  place("summary").removeAttribute("aria-busy");
}

function svg(tag, properties, words) {
  const element = document.createElementNS("http://www.w3.org/2000/svg", tag);
  for (const [name, value] of Object.entries(properties)) element.setAttribute(name, value);
  if (words !== undefined) element.textContent = words;
  return element;
}

function showUsage(limits) {
  const plot = place("plot");
  place("usage").hidden = samples.length < 2;
  if (samples.length < 2) return;
  const width = plot.clientWidth || 600;
  const [height, left, bottom] = [160, 62, 18];
  const first = samples[0].seconds;
  const last = Math.max(samples[samples.length - 1].seconds, first + 30);
  const most = 1.08 * Math.max(...samples.map((each) => each.bytes), ...limits, 1);
  const x = (seconds) => left + ((width - left - 4) * (seconds - first)) / (last - first);
  const y = (bytes) => 6 + (height - bottom - 6) * (1 - bytes / most);
  plot.setAttribute("viewBox", `0 0 ${width} ${height}`);
  plot.replaceChildren();
  for (const share of [0, 0.5, 1]) {
    const bytes = (share * most) / 1.08;
    plot.append(svg("line", { class: "grid", x1: left, x2: width - 4, y1: y(bytes), y2: y(bytes) }),
      svg("text", { x: left - 6, y: y(bytes) + 4, "text-anchor": "end" }, size(Math.round(bytes))));
  }
  const line = samples.map((each, k) => `${k ? "L" : "M"}${x(each.seconds).toFixed(1)} ${y(each.bytes).toFixed(1)}`).join("");
  const end = x(samples[samples.length - 1].seconds);
  plot.append(svg("path", { class: "area", d: `${line}L${end.toFixed(1)} ${y(0)}L${left} ${y(0)}Z` }), svg("path", { class: "line", d: line }));
  for (const limit of limits) plot.append(svg("line", { class: "limit", x1: left, x2: width - 4, y1: y(limit), y2: y(limit) }));
  plot.append(svg("text", { x: left, y: height - 3 }, clock(first)), svg("text", { x: width - 4, y: height - 3, "text-anchor": "end" }, clock(last)));
  const legend = [make("span", { class: "key" }, "bytes in the cache, since this page is open")];
  if (limits.length) legend.push(make("span", { class: "key limits" }, "limit (cache_size)"));
  place("legend").replaceChildren(...legend);
}

function showDownloads(found) {
  const cards = found.downloads.map((each) => {
    const key = `${each.pid} ${each.name}`;
    const before = speeds.get(key);
    let rate = before?.rate ?? 0;
    if (before && found.now > before.seconds) {
      const now = Math.max(0, each.written_bytes - before.bytes) / (found.now - before.seconds);
      rate = before.rate ? 0.6 * before.rate + 0.4 * now : now;
    }
    speeds.set(key, { bytes: each.written_bytes, seconds: found.now, rate });
    const isWhole = each.size_bytes > each.written_bytes;
    const share = isWhole ? each.written_bytes / each.size_bytes : 0;
    const bar = make("i");
    bar.style.width = `${100 * share}%`;
    const words = isWhole ? `${size(each.written_bytes)} of ${size(each.size_bytes)}` : `${size(each.written_bytes)} so far`;
    const state = each.is_locked === false ? "left behind: no process that can be seen writes it" : `${rate ? `${size(Math.round(rate))}/s · ` : ""}process ${each.pid}`;
    return make("div", { class: "card download" }, make("p", {}, named(each.name)),
      isWhole ? make("div", { class: "bar", role: "progressbar", "aria-valuenow": Math.round(100 * share), "aria-valuemin": 0, "aria-valuemax": 100, "aria-label": nameOf(each.name) }, bar) : null,
      make("p", { class: "soft" }, `${words} · ${state}`));
  });
  const live = new Set(found.downloads.map((each) => `${each.pid} ${each.name}`));
  for (const key of speeds.keys()) if (!live.has(key)) speeds.delete(key);
  place("downloading").replaceChildren(...cards);
  place("downloads").hidden = !cards.length;
  place("downloads-left").textContent = found.downloads_left ? `and ${count(found.downloads_left)} more` : "";
}

function showProcesses(found) {
  const by = new Map(found.holders.map((holder) => [holder.pid, { ...holder, jobs: [] }]));
  for (const job of found.jobs) {
    if (!by.has(job.pid)) by.set(job.pid, { pid: job.pid, program: "", shards: 0, jobs: [] });
    by.get(job.pid).jobs.push(job);
  }
  const lines = [...by.values()].map((each) => {
    const rate = hitRate(each.jobs);
    const fetches = sum(each.jobs, "fetches");
    const told = each.jobs.length ? `${count(fetches)} (${size(sum(each.jobs, "fetched_bytes"))})` : "";
    return make("tr", {}, make("td", {}, String(each.pid), each.is_orphan ? make("span", { class: "tag", title: "What started it has ended, or is process 1" }, "orphan") : null),
      make("td", {}, make("code", { class: "program", title: each.program }, each.program)),
      make("td", { class: "number" }, count(each.shards)),
      make("td", { class: "number" }, rate === null ? "" : `${Math.round(100 * rate)} %`),
      make("td", { class: "number" }, told));
  });
  place("holders").replaceChildren(...lines);
  place("processes").hidden = !lines.length;
  place("holders-left").textContent = found.holders_left ? `and ${count(found.holders_left)} more` : "";
}

function showChanges(found) {
  const list = place("changes");
  for (const change of found.changes) {
    lastChange = change.number;
    const words = change.has_come ? "arrived" : change.is_noted ? "went" : "deleted";
    const title = change.has_come ? "It was downloaded, or adopted" : change.is_noted ? "A cache has evicted or cleaned it: to make space, or to replace it" : "By something that is no wids cache";
    list.prepend(make("li", {}, make("span", { class: "soft" }, clock(change.seconds)), make("span", { class: change.has_come ? "came" : "went", title }, words),
      make("span", { class: "name mono", title: urls.get(change.name) ?? change.name }, nameOf(change.name)),
      make("span", { class: "number soft" }, change.size_bytes === null ? "" : size(change.size_bytes))));
  }
  while (list.children.length > MOST_EVENTS) list.lastChild.remove();
  place("events").hidden = !list.children.length;
}

function makeRow(row) {
  const cells = { name: make("td"), size: make("td", { class: "number" }), arrived: make("td", { class: "number wide" }), used: make("td", { class: "number" }), next: make("td", { class: "number" }), open: make("td", { class: "wide" }) };
  return { row, cells, element: make("tr", {}, ...Object.values(cells)) };
}

function showRows(found) {
  for (const row of found.rows) {
    const shown = rows.get(row.number) ?? makeRow(row);
    rows.set(row.number, shown);
    shown.row = row;
    const { cells } = shown;
    cells.name.replaceChildren(named(row.name));
    if (row.pids.length) cells.name.append(make("span", { class: "tag", title: `in ${plural(row.pids.length, "process").replace("processs", "processes")}` }, "open"));
    if (row.is_kept) cells.name.append(make("span", { class: "tag", title: "Marked by keep: it is not evicted" }, "kept"));
    cells.size.textContent = size(row.size_bytes);
    cells.open.textContent = row.pids.slice(0, 6).join(", ") + (row.pids.length > 6 ? ` and ${row.pids.length - 6} more` : "");
  }
  if (found.order !== null) {
    order = found.order;
    const kept = new Set(order);
    for (const number of rows.keys()) if (!kept.has(number)) rows.delete(number);
    place("rows").replaceChildren(...order.map((number) => rows.get(number)?.element).filter(Boolean));
  }
  for (const { row, cells } of rows.values()) {
    const words = [["arrived", ago(found.now - row.arrived)], ["used", ago(found.now - row.used)], ["next", row.next === null ? "" : row.next <= found.now + 1 ? "now" : `in ${ago(row.next - found.now)}`]];
    for (const [name, text] of words) if (cells[name].textContent !== text) cells[name].textContent = text;
  }
  place("shards").hidden = !order.length;
  const left = found.shards - order.length;
  place("left").textContent = left > 0 ? `and ${count(left)} more: shown are those that are open, that jobs read next, and that were used last` : "";
}

/** What is here, and what to do, while no job with a plan runs. */
function advice(found, isEmpty) {
  const { directory, index } = place("note").dataset;
  const there = !found.exists ? "The directory does not exist yet: the first download makes it." : isEmpty ? "The cache is empty." : `${plural(found.shards, "shard")} of earlier jobs ${found.shards === 1 ? "is" : "are"} here, and no job says that it runs now.`;
  const quoted = (text) => (/^[\w@%+=:,./-]+$/.test(text) ? text : `'${text.replaceAll("'", "'\\''")}'`);
  const ways = isEmpty
    ? [["Download shards before a job needs them: ", `wids cache warm ${quoted(index)} --cache-dir ${quoted(directory)}`]]
    : [["List them: ", `wids cache ls ${quoted(directory)}`], ["Make space: ", `wids cache clean ${quoted(directory)} --max-size 100GB`]];
  const more = "While a job trains with a sampler of wids and this directory (cache_dir, $WIDS_CACHE), downloads, the limit, cache hits and the next use of each shard are shown. Shards on local disks are read in place, and never come here.";
  return [make("p", {}, there), ...ways.map(([words, code]) => make("p", {}, words, make("code", {}, code))), make("p", { class: "soft" }, more)];
}

function show(found) {
  if (found.boot !== boot) {
    rows.clear();
    place("changes").replaceChildren();
    lastChange = 0;
  }
  for (const [name, url] of Object.entries(found.urls)) urls.set(name, url);
  [boot, revision] = [found.boot, found.revision];
  const limits = [...new Set(found.jobs.map((job) => job.figures.cache_size).filter((limit) => limit !== undefined))].sort((a, b) => a - b);
  samples.push({ seconds: found.now, bytes: found.used_bytes });
  if (samples.length > MOST_SAMPLES) samples.splice(0, samples.length - MOST_SAMPLES);
  showFacts(found, limits);
  showUsage(limits);
  showDownloads(found);
  showProcesses(found);
  showChanges(found);
  showRows(found);
  const isEmpty = !found.shards && !found.downloads.length;
  const isIdle = !found.jobs.length && !found.plans;
  place("note").hidden = !isEmpty && !isIdle;
  place("note").replaceChildren(...advice(found, isEmpty));
  place("usage").hidden ||= isEmpty;
  place("unknown").hidden = false;
  place("unknown").textContent = [
    found.sees_all ? "Processes of other containers are not seen." : "On this system readers are looked for among the shown shards, every 10 s.",
    found.strangers ? `${plural(found.strangers, "file")} in the directory ${found.strangers === 1 ? "is" : "are"} not the cache's: nothing touches them.` : "",
  ].join(" ");
  place("state").textContent = "live";
  place("state").classList.remove("error");
}

async function look() {
  clearTimeout(timer);
  if (document.hidden) return;
  try {
    show(await ask(`/api/cache?boot=${boot}&since=${revision}&changes=${lastChange}`));
  } catch (error) {
    if (place("summary").childElementCount) {
      place("state").textContent = error.message;
      place("state").classList.add("error");
    } else fail(place("summary"), error);
  }
  timer = setTimeout(look, EVERY_MS);
}

document.addEventListener("visibilitychange", () => {
  place("state").textContent = document.hidden ? "paused" : "";
  look();
});
look();
