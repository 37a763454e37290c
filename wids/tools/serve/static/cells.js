// A sample as a cell: `cell(row)` of a row of /api/rows. What it shows is asked for when it comes into sight, at most
// four requests at a time, and asked for no more when it leaves. A page with cells links cells.css.
import { ask, make, size, there } from "./common.js";
import { badge } from "./tags.js";

// Browsers have six connections to a server: rows, tags and values find one where samples are slow.
const MOST = 4;
const MORE = 2; // that are urgent
const SLOW = 15_000; // milliseconds after which the next one has its turn
const AUDIO_BYTES = 4e6; // longer ones are played, not drawn
const LETTERS = 280;
const KEPT = 400; // thumbnails of cells that left, so that those who come back find them

let running = 0;
const waiting = [];

/** Run `work(signal)` when fewer than four run; `signal` stops it, also while it waits. Rows go before pictures. */
export function soon(work, signal, { isUrgent = false } = {}) {
  return new Promise((resolve, reject) => {
    const job = { work, signal, resolve, reject, isUrgent };
    job.stop = () => {
      const at = waiting.indexOf(job);
      if (at >= 0) waiting.splice(at, 1);
      reject(new DOMException("left", "AbortError"));
    };
    if (signal.aborted) return job.stop();
    signal.addEventListener("abort", job.stop, { once: true });
    if (isUrgent) waiting.unshift(job);
    else waiting.push(job);
    next();
  });
}

function next() {
  while (waiting.length && running < MOST + (waiting[0].isUrgent ? MORE : 0)) {
    const job = waiting.shift();
    running += 1;
    Promise.resolve(job.work(job.signal))
      .then(job.resolve, job.reject)
      .finally(() => {
        job.signal.removeEventListener("abort", job.stop);
        running -= 1;
        next();
      });
  }
}

const path = (row) => `${row.index}/@${row.main.number}`; // by number, for not every name can be in an address

// --- what is drawn, by kind: each gives an element, or null where nothing can be drawn

const pictures = new Map(); // address -> URL of a blob, used last at the end

async function picture(row, field, signal) {
  const address = `/thumb/${path(row, field)}`;
  let url = pictures.get(address);
  if (url === undefined) {
    const answer = await fetch(there(address), { signal, headers: { "X-Wids": "1" } });
    if (!answer.ok) throw new Error(await sentence(answer));
    url = URL.createObjectURL(await answer.blob());
  }
  pictures.delete(address);
  pictures.set(address, url);
  if (pictures.size > KEPT) {
    const [oldest, gone] = pictures.entries().next().value;
    pictures.delete(oldest);
    URL.revokeObjectURL(gone);
  }
  const image = make("img", { src: url, alt: "", draggable: "false" });
  await image.decode().catch(() => {
    throw new Error(`${field} cannot be shown`);
  });
  return image;
}

async function text(row, field, signal) {
  const found = await ask(`/api/text/${path(row, field)}`, { signal });
  return make("p", { class: "words", dir: "auto" }, String(found.text).slice(0, LETTERS));
}

async function audio(row, field, signal) {
  if (row.fields[field] > AUDIO_BYTES) return null;
  const answer = await fetch(there(`/field/${path(row, field)}`), { signal, headers: { "X-Wids": "1" } });
  if (!answer.ok) throw new Error(await sentence(answer));
  const data = await answer.arrayBuffer();
  const sound = await new OfflineAudioContext(1, 1, 22050).decodeAudioData(data).catch(() => null);
  return sound && wave(sound);
}

function wave(sound) {
  const [columns, values] = [96, sound.getChannelData(0)];
  const tops = Array.from({ length: columns }, (_, k) => {
    let most = 0;
    const end = Math.floor(((k + 1) * values.length) / columns);
    const step = Math.max(1, Math.floor(values.length / columns / 400));
    for (let i = Math.floor((k * values.length) / columns); i < end; i += step) most = Math.max(most, Math.abs(values[i]));
    return most;
  });
  const loudest = Math.max(...tops, 1e-6);
  const svg = document.createElementNS("http://www.w3.org/2000/svg", "svg");
  svg.setAttribute("viewBox", `0 0 ${columns} 40`);
  svg.setAttribute("preserveAspectRatio", "none");
  svg.setAttribute("class", "wave");
  const line = document.createElementNS("http://www.w3.org/2000/svg", "path");
  const bars = tops.map((top, k) => `M${k + 0.5} ${20 - (19 * top) / loudest}V${20.5 + (19 * top) / loudest}`);
  line.setAttribute("d", bars.join(""));
  svg.append(line);
  return make("div", { class: "sound" }, svg, make("span", { class: "soft" }, `${sound.duration.toFixed(1)} s`));
}

function video(row, field, signal) {
  return new Promise((resolve, reject) => {
    const film = make("video", { preload: "metadata", playsinline: true, tabindex: "-1", src: there(`/field/${path(row, field)}`) });
    film.muted = true;
    const stop = () => {
      film.removeAttribute("src");
      film.load();
      reject(new DOMException("left", "AbortError"));
    };
    signal.addEventListener("abort", stop, { once: true });
    film.addEventListener("loadeddata", () => resolve(film), { once: true });
    film.addEventListener("error", () => resolve(null), { once: true });
  });
}

const DRAW = { image: picture, array: picture, text, audio, video };

async function sentence(answer) {
  const found = await answer.json().catch(() => ({}));
  return found.error ?? `the server answered with ${answer.status}`;
}

function list(row) {
  const names = Object.entries(row.fields ?? {});
  const lines = names.slice(0, 6).map(([name, bytes]) => make("li", {}, make("b", {}, name), ` ${size(bytes)}`));
  if (names.length > 6) lines.push(make("li", { class: "soft" }, `and ${names.length - 6} more`));
  return make("ul", { class: "parts" }, ...lines);
}

function draw(place, row, signal) {
  const { field, kind } = row.main;
  const work = DRAW[kind];
  if (!work || !(field in row.fields)) {
    place.replaceChildren(list(row));
    return;
  }
  place.setAttribute("aria-busy", "true");
  let limit;
  const run = () => {
    limit = AbortSignal.timeout(SLOW);
    return work(row, field, AbortSignal.any([signal, limit]));
  };
  soon(run, signal)
    .then((found) => {
      place.dataset.done = "1";
      place.replaceChildren(found ?? list(row));
      place.removeAttribute("aria-busy");
    })
    .catch((error) => {
      if (signal.aborted) return;
      const words = limit?.aborted ? `${field} is not here after ${SLOW / 1000} seconds; it is asked for again when it comes into sight` : error.message;
      place.replaceChildren(make("p", { class: "error why" }, words));
      place.removeAttribute("aria-busy");
    });
}

// --- in sight or not

const controllers = new WeakMap(); // cell -> AbortController of what it loads
const begins = new WeakMap(); // cell -> function of a signal that begins to load

const sight = new IntersectionObserver(
  (entries) => {
    for (const { target, isIntersecting } of entries) {
      if (isIntersecting) show(target);
      else leave(target);
    }
  },
  { rootMargin: "150px" },
);

function show(element) {
  if (controllers.has(element)) return;
  const controller = new AbortController();
  controllers.set(element, controller);
  begins.get(element)?.(controller.signal);
}

/** Call `begin(signal)` each time an element comes into sight; the signal says that it has left. */
export function watch(element, begin) {
  begins.set(element, begin);
  sight.observe(element);
}

/** Draw in `place` what stands for a sample, unless it is there. */
export function drawFace(place, row, signal) {
  if (row.main && !place.dataset.done) draw(place, row, signal);
}

/** A cell that is shown no more. */
export function discard(element) {
  leave(element);
  sight.unobserve(element);
  element.remove();
}

/** Ask no more for what a cell shows: it is out of sight. */
function leave(element) {
  controllers.get(element)?.abort();
  controllers.delete(element);
}

/** What stands below a cell's picture: the key, or the value of a column. */
function caption(row, name) {
  if (!name || !row.columns || !(name in row.columns)) return row.key ?? `sample ${row.index}`;
  const value = row.columns[name];
  const words = value === null ? "–" : typeof value === "object" ? JSON.stringify(value) : String(value);
  return `${name}: ${words}`;
}

/**
 * The element of a sample. `row`: of /api/rows, or `{index}` alone: it is on its way.
 * `caption`: a column whose value stands below. `href`: where it leads; default: the sample's page.
 * `ontag(row, isSet, event)`: somebody clicked its corner; without it there is no corner.
 */
export function cell(row, { caption: name, href = there(`/sample/${row.index}`), ontag, names = {} } = {}) {
  const face = make("div", { class: "face" });
  const words = caption(row, name);
  const link = make(
    "a",
    { class: "link", href, tabindex: "-1", draggable: "false", title: words },
    face,
    make("span", { class: "caption" }, names[name]?.[row.columns?.[name]] ? `${name}: ${names[name][row.columns[name]]}` : words),
  );
  const element = make("div", { class: "cell", "data-index": String(row.index) }, link);
  if (row.dataset) link.append(make("span", { class: "of soft" }, row.dataset));
  if (row.error) {
    face.append(make("p", { class: "error why" }, row.error));
    face.title = row.error;
  } else if (!row.fields) {
    face.setAttribute("aria-busy", "true");
  } else if (!row.main) {
    face.append(Object.keys(row.fields).length ? list(row) : make("p", { class: "soft" }, "no fields"));
  }
  if (ontag) element.append(make("button", { class: "corner", type: "button", tabindex: "-1", onclick: (event) => ontag(row, !element.classList.contains("first"), event) }));
  element.append(make("span", { class: "tags" }));
  showTags(element, row.tags ?? []);
  watch(element, (signal) => drawFace(face, row, signal));
  return element;
}

/** Show the tags of a cell, or of a line. */
export function showTags(element, tags) {
  element.classList.toggle("tagged", tags.length > 0);
  element.classList.toggle("first", tags.includes(1));
  element.querySelector(".tags")?.replaceChildren(...tags.map(badge));
  const corner = element.querySelector(".corner");
  if (!corner) return;
  corner.setAttribute("aria-pressed", String(tags.includes(1)));
  corner.setAttribute("aria-label", `Tag 1 on sample ${element.dataset.index}`);
  corner.title = "Tag 1 (space)";
}
