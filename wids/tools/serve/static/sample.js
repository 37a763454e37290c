// The page of a sample: each field in a card of its own, which is filled when it comes into sight.
import { ask, count, fail, keys, make, say, size, there } from "./common.js";
import { letters } from "./letters.js";
import { tree } from "./tree.js";
import { zoomable } from "./zoom.js";

const index = Number(document.getElementById("sample").dataset.index);
const fields = document.getElementById("fields");
const about = document.getElementById("about");
let pictures = []; // the fields that are
const ORDER = ["image", "video", "audio", "text", "array", "other"];

const pairs = (entries) => make("dl", { class: "pairs" }, ...entries.filter(([, value]) => value !== undefined && value !== "").flatMap(
  ([name, value]) => [make("dt", {}, name), make("dd", {}, ...(value instanceof Node ? [value] : letters(String(value))))]));
const number = (value) => (typeof value === "number" ? (Number.isInteger(value) ? count(value) : String(Number(value.toPrecision(6)))) : String(value));
const card = (title, ...children) => make("section", { class: "card" }, make("div", { class: "head-row" }, make("h2", {}, title)), ...children);

// --- what a field is shown by

async function showText(body, field, letterCount = 2000) {
  const found = await ask(`/api/text/${index}/${field.at}?letters=${letterCount}`);
  const text = make("pre", { class: "text", tabindex: "0", "aria-label": "text" }, ...letters(found.text));
  const notes = found.damaged ? [make("p", { class: "error" }, `${count(found.damaged)} bytes are no UTF-8 and are shown as \ufffd`)] : [];
  const more = found.is_whole ? [] : [make("button", { type: "button", onclick: async (event) => {
    event.target.disabled = true;
    await showText(body, field, letterCount * 10).catch((error) => fail(body, error));
  } }, "More")];
  if (letterCount >= 1_000_000) more.length = 0;
  body.replaceChildren(found.text ? text : make("p", { class: "soft" }, "empty"), ...notes, ...more);
}

async function showPicture(body, field, found) {
  const path = found.is_drawn ? "field" : "picture";
  const [width, height] = found.is_drawn ? [found.width, found.height] : fitted(found.width, found.height, 4096);
  const under = found.classes && (await pictureBelow(field, found));
  body.replaceChildren(zoomable(there(`/${path}/${index}/${field.at}`), { width, height, under, name: field.name, onerror: (error) => fail(body, error) }));
  if (found.classes) body.append(classes(found.classes));
  if (found.classes && !under) body.querySelector("img").classList.add("ground");
  const notes = [];
  if (found.classes) notes.push(`A mask: each class has a colour${under ? ", over the picture of the sample" : ""}.`);
  if (found.is_scaled) notes.push("Shown from its darkest to its brightest value.");
  if (width !== found.width) notes.push(`Shown at ${count(width)} × ${count(height)} pixels.`);
  if (found.is_moving) notes.push("An animation; the first frame is shown, as it is decoded.");
  if (found.exif.some(([name, value]) => name === "Orientation" && value !== "1")) notes.push("EXIF says to turn it; it is shown as it is decoded, not turned.");
  if (notes.length) body.append(make("p", { class: "place" }, notes.join(" ")));
  if (found.exif.length) body.append(make("details", {}, make("summary", { class: "soft" }, `EXIF, ${count(found.exif.length)} tags`), pairs(found.exif)));
}

/** The address of the picture that a mask of the same shape belongs to; undefined: there is none. */
async function pictureBelow(field, { width, height }) {
  for (const each of pictures.filter(({ at }) => at !== field.at)) {
    const found = await describe(each).catch(() => ({}));
    if (found.kind === "image" && !found.classes && found.width * height === width * found.height) {
      return there(`/${found.is_drawn ? "field" : "picture"}/${index}/${each.at}`);
    }
  }
}

function classes(found) {
  const keys = found.map(({ number: which, share, colour }) => {
    const key = make("i");
    key.style.background = colour;
    return make("li", {}, key, `${count(which)} · ${(100 * share).toPrecision(2)} %`);
  });
  return make("ul", { class: "classes", "aria-label": "Classes of the mask" }, ...keys);
}

function fitted(width, height, side) {
  const scale = Math.min(1, side / width, side / height);
  return [Math.max(Math.round(width * scale), 1), Math.max(Math.round(height * scale), 1)];
}

/** An SVG as a picture, which runs no script and loads nothing, and its text. */
async function showDrawing(body, field) {
  const image = make("img", { src: there(`/field/${index}/${field.at}`), alt: field.name });
  image.addEventListener("error", () => image.parentElement.remove());
  const text = make("div", { "aria-busy": "true" });
  body.replaceChildren(make("div", { class: "drawing" }, image), text);
  await showText(text, field);
  text.removeAttribute("aria-busy");
}

function showPlayer(body, field, kind) {
  const player = make(kind, { controls: true, preload: "metadata", src: there(`/field/${index}/${field.at}`), "aria-label": field.name });
  player.addEventListener("error", () => fail(body, new Error("the browser cannot play this; it may be damaged, or of a kind that it does not know")));
  body.replaceChildren(player);
}

function bars(counts, low, high) {
  const most = Math.max(...counts, 1);
  const row = make("div", { class: "bars", role: "img", "aria-label": `histogram from ${number(low)} to ${number(high)}` });
  for (const each of counts) {
    const bar = make("i", { title: count(each) });
    bar.style.height = `${each ? Math.max((100 * each) / most, 2) : 0}%`;
    row.append(bar);
  }
  return make("div", {}, row, make("div", { class: "bars-ends" }, make("span", {}, number(low)), make("span", {}, number(high))));
}

function showArrays(body, field, found) {
  const blocks = found.measures.map((each, k) => {
    const rows = [["shape", `(${each.shape.join(", ")})`], ["type", each.dtype], ["min", each.min], ["mean", each.mean], ["max", each.max], ["std", each.std],
      ["NaN", each.nans || undefined], ["infinite", each.infinities || undefined]];
    const left = pairs(rows.map(([name, value]) => [name, typeof value === "number" ? number(value) : value]));
    const right = [];
    if (k === 0 && each.size > 1) {
      const image = make("img", { src: there(`/picture/${index}/${field.at}`), alt: `${field.name} as a picture`, loading: "lazy" });
      image.addEventListener("error", () => image.remove());
      right.push(make("div", { class: "array" }, image));
    }
    const head = each.name ? [make("h3", {}, ...letters(each.name))] : [];
    const shown = each.histogram ? [bars(each.histogram, each.min, each.max)] : [];
    return make("div", {}, ...head, make("div", { class: "measures" }, make("div", {}, left, ...shown), ...right));
  });
  body.replaceChildren(...blocks);
}

const described = new Map(); // by field: the promise of what the server says of it

function describe({ at }) {
  if (!described.has(at)) described.set(at, ask(`/api/field/${index}/${at}`));
  return described.get(at);
}

async function showField(body, words, field) {
  const found = await describe(field);
  words.replaceChildren(...letters(`${size(field.size)}${found.words && !["video", "audio", "text", "json", "number", "bytes", "damaged", "large", "unopened"].includes(found.kind) ? ` · ${found.words}` : ""}`));
  words.title = words.textContent;
  if (found.kind === "image") return showPicture(body, field, found);
  if (found.kind === "video" || found.kind === "audio") return showPlayer(body, field, found.kind);
  if (found.measures) return showArrays(body, field, found);
  if (found.kind === "json") {
    const path = `/api/tree/${index}/${field.at}`;
    return body.replaceChildren(tree(path, await ask(path)));
  }
  if (found.kind === "number") {
    return body.replaceChildren(make("p", { class: "number-big" }, String(found.value), found.class === undefined ? "" : make("span", { class: "soft" }, " · "), ...letters(found.class ?? "")));
  }
  const isText = field.kind === "text";
  if (isText && field.name.toLowerCase().endsWith(".svg")) return showDrawing(body, field);
  if (found.kind === "text" || (isText && found.kind === "bytes")) return showText(body, field);
  const told = make("p", { class: found.kind === "damaged" ? "error" : "soft", ...(found.kind === "damaged" ? { role: "alert" } : {}) }, ...letters(found.kind === "damaged" ? `damaged: ${found.words}` : found.words));
  body.replaceChildren(told);
  if (isText) {
    const text = make("div", { "aria-busy": "true" });
    body.append(text);
    await showText(text, field);
    text.removeAttribute("aria-busy");
  }
}

const inSight = new IntersectionObserver((entries) => {
  for (const entry of entries) {
    if (!entry.isIntersecting) continue;
    inSight.unobserve(entry.target);
    entry.target.begin();
  }
}, { rootMargin: "400px" });

function fieldCard(field) {
  const words = make("span", { class: "words" }, size(field.size));
  const body = make("div", { "aria-busy": "true" });
  const links = make("span", { class: "links" }, make("a", { href: there(`/field/${index}/${field.at}`), target: "_blank", rel: "noopener" }, "raw"));
  const section = make("section", { class: "card field" }, make("header", {}, make("h2", { class: "mono" }, ...letters(field.name)), words, links), body);
  section.begin = async () => {
    await showField(body, words, field).catch((error) => fail(body, error));
    body.removeAttribute("aria-busy");
  };
  inSight.observe(section);
  return section;
}

// --- what is beside the fields

function showPlaces(found) {
  const rows = found.fields.map((field) => make("tr", {}, make("td", { class: "mono" }, ...letters(field.name)),
    make("td", { class: "number" }, count(field.size)), make("td", { class: "number" }, count(field.offset))));
  const head = make("tr", {}, make("th", {}, "field"), make("th", { class: "number" }, "bytes"), make("th", { class: "number" }, "at byte"));
  return make("div", { class: "scroll" }, make("table", {}, make("thead", {}, head), make("tbody", {}, ...rows)));
}

function showCode(code) {
  const copy = make("button", { type: "button", onclick: async () => {
    try {
      await navigator.clipboard.writeText(code);
      say("Copied");
    } catch {
      say("The browser does not let pages copy; select the code");
    }
  } }, "Copy");
  const section = card("Code", make("pre", {}, `import wids\n${code}`));
  section.firstElementChild.append(copy);
  return section;
}

async function showColumns() {
  const { columns } = await ask(`/api/columns/${index}`);
  if (columns.length) about.insertBefore(card("Columns", pairs(columns.map(([name, value]) => [name, value ?? "null"]))), about.lastElementChild);
}

async function start() {
  const found = await ask(`/api/sample/${index}`);
  document.getElementById("key").replaceChildren(...letters(found.key));
  document.getElementById("key").title = found.key;
  const sorted = [...found.fields].sort((a, b) => ORDER.indexOf(a.kind) - ORDER.indexOf(b.kind));
  pictures = sorted.filter(({ kind }) => kind === "image");
  fields.replaceChildren(...sorted.map(fieldCard));
  fields.removeAttribute("aria-busy");
  const place = pairs([["shard", count(found.shard)], ["row", count(found.row)], ["set", found.dataset ?? undefined], ["url", found.url]]);
  about.replaceChildren(card("Place", place, showPlaces(found)), showCode(found.code));
  await showColumns().catch((error) => {
    const section = card("Columns", make("div", {}));
    about.append(section);
    fail(section.lastElementChild, error);
  });
}

// --- keys and tags

const follow = (id) => (event) => {
  if (event.target.closest?.("video, audio, select")) return false;
  const link = document.getElementById(id);
  if (!link.href) return false;
  location.assign(link.href);
};
keys({ ArrowLeft: follow("before"), ArrowRight: follow("after") });

async function startTags() {
  const tags = await import("./tags.js"); // its state changes
  const { TAGS, badge, nameOf, set, tagOfKey, tagsOf } = tags;
  const bar = document.getElementById("tags");
  let own = [];
  const change = (tag) => set(tag, !own.includes(tag), { indices: [index] }).catch((error) => say(error.message));
  const button = (tag) => make("button", { type: "button", class: "tagger", "data-of": String(tag), "aria-pressed": String(own.includes(tag)), title: `${nameOf(tag)} (${tag})`, onclick: () => change(tag) }, badge(tag), make("bdi", {}, nameOf(tag)));
  const show = () => {
    const isKnown = (tag) => tags.state.tags[tag - 1].name !== "" || tags.state.tags[tag - 1].count > 0;
    const next = TAGS.find((tag) => !isKnown(tag)); // one that nobody uses yet
    const focused = bar.contains(document.activeElement) ? document.activeElement.dataset.of : "";
    bar.replaceChildren(...TAGS.filter((tag) => tag === next || isKnown(tag)).map(button));
    bar.querySelector(`[data-of="${focused}"]`)?.focus();
  };
  const renew = async () => {
    own = (await tagsOf([index])).get(index);
    show();
  };
  document.addEventListener("tags", () => renew().catch((error) => say(error.message)));
  await renew();
  bar.hidden = false;
  document.addEventListener("keydown", (event) => {
    if (event.ctrlKey || event.metaKey || event.altKey || document.querySelector("dialog[open]")) return;
    if (event.target.closest?.("input, textarea, select, video, audio") || (event.key === " " && event.target.closest?.("button, a, summary"))) return;
    const found = tagOfKey(event);
    if (!found) return;
    event.preventDefault();
    change(found.tag);
  });
}

start().catch((error) => fail(fields, error));
startTags().catch((error) => say(error.message));
