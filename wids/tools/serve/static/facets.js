// The columns beside a filter, and what their values are among the samples that it chooses: each can be clicked.
import { ask, count, fail, make } from "./common.js";

const $ = (id) => document.getElementById(id);
const OPEN = 6; // columns whose values are counted without being asked for

/** `list.where`: the filter. `filter(where)`: have another one. Returns `columns` (a promise), and `showFacets(signal)`. */
export function showColumns({ list, filter, names }) {
  const columns = ask("/api/columns").catch((error) => ({ columns: [], fields: [], classes: [], words: error.message }));
  const opened = new Map(); // name -> whether somebody opened or closed it

  columns.then((found) => {
    names(found.classes ?? []);
    $("columns").replaceChildren(...found.columns.map(chip));
    $("columns").removeAttribute("aria-busy");
    $("where").placeholder = example(found.columns);
    if (found.words) {
      $("how").textContent = found.words;
      $("how").hidden = false;
    }
  });

  function chip({ name, type }) {
    const word = written(name);
    const insert = () => {
      const box = $("where");
      const [lo, hi] = [box.selectionStart, box.selectionEnd];
      const space = lo && !/[\s(]$/.test(box.value.slice(0, lo)) ? " " : "";
      box.setRangeText(`${space}${word} `, lo, hi, "end");
      box.focus();
    };
    return make("button", { type: "button", class: "chip", onclick: insert, title: `${name}: ${type}` }, name, make("small", {}, type));
  }

  async function showFacets(signal) {
    const found = await columns;
    if (signal.aborted) return;
    const shown = found.columns.filter((each) => each.has_facet);
    const parts = shown.map((each, k) => {
      const isOpen = opened.get(each.name) ?? (k < OPEN && each.is_cheap);
      const body = make("div", { class: "values" });
      const part = make("details", { class: "facet", open: isOpen, "data-name": each.name }, make("summary", {}, each.name), body);
      part.addEventListener("toggle", () => {
        if (part.open === isOpen && !part.dataset.touched) return;
        part.dataset.touched = "1";
        opened.set(each.name, part.open);
        if (part.open && !body.dataset.asked) fill(each, body, signal);
      });
      return { each, body, isOpen, part };
    });
    $("facets").replaceChildren(...(parts.length ? [make("h2", {}, "Values")] : []), ...parts.map(({ part }) => part));
    for (const [k, { each, body, isOpen }] of parts.entries()) {
      if (signal.aborted) return;
      if (!isOpen || (await fill(each, body, signal)) || !found.words) continue;
      if (!signal.aborted) parts.slice(k + 1).forEach(({ part }) => part.removeAttribute("open"));
      return; // a member table that one column lacks, all lack
    }
  }

  async function fill({ name }, body, signal) {
    body.dataset.asked = "1";
    body.setAttribute("aria-busy", "true");
    try {
      const facet = await ask(`/api/facet?${new URLSearchParams({ column: name, where: list.where })}`, { signal });
      if (facet.values) body.replaceChildren(bars(facet));
      else if (facet.bins) body.replaceChildren(histogram(facet));
      else body.replaceChildren(make("p", { class: "soft small" }, `${facet.is_about ? "about " : ""}${count(facet.distinct)} different values`));
      body.removeAttribute("aria-busy");
      return true;
    } catch (error) {
      if (error.name === "AbortError") delete body.dataset.asked;
      else fail(body, error);
      return false;
    }
  }

  /** The filter with one more condition, or without it if it has it. */
  function toggled(sql) {
    const parts = conditions(list.where);
    const at = parts.indexOf(sql);
    if (at >= 0) return parts.toSpliced(at, 1).join(" and ");
    return [...parts.map(guarded), sql].join(" and ");
  }

  function bars({ values }) {
    const most = Math.max(...values.map((each) => each.count), 1);
    const chosen = conditions(list.where);
    const lines = values.map(({ words, count: number, sql }) => {
      const bar = make("i", {});
      bar.style.width = `${(100 * number) / most}%`;
      return make(
        "button",
        { type: "button", class: "value", "aria-pressed": String(chosen.includes(sql)), title: sql, onclick: () => filter(toggled(sql)) },
        bar,
        make("span", { class: "word", dir: "auto" }, words === "" ? "(empty)" : words),
        make("span", { class: "number" }, count(number)),
      );
    });
    if (!lines.length) return make("p", { class: "soft small" }, "no samples");
    return make("div", {}, ...lines);
  }

  /** A histogram: a click chooses a bar, a drag a range of them; arrows and Enter do, too. */
  function histogram({ name, bins, others }) {
    const most = Math.max(...bins.map((bin) => bin.count), 1);
    const [wide, high] = [240, 60];
    const svg = document.createElementNS("http://www.w3.org/2000/svg", "svg");
    svg.setAttribute("viewBox", `0 0 ${wide} ${high}`);
    svg.setAttribute("preserveAspectRatio", "none");
    svg.setAttribute("class", "histogram");
    svg.setAttribute("role", "group");
    svg.setAttribute("aria-label", `How often each ${name} is; choose a range`);
    const words = make("p", { class: "soft small range" });
    const whole = () => `${short(bins[0].lo)} to ${short(bins.at(-1).hi)}${others ? `, ${count(others)} without` : ""}`;
    words.textContent = whole();
    let [from, to] = [null, null];
    const rects = bins.map((bin, k) => {
      const tall = bin.count ? Math.max(1.5, (high * bin.count) / most) : 0;
      const back = document.createElementNS("http://www.w3.org/2000/svg", "rect");
      const rect = document.createElementNS("http://www.w3.org/2000/svg", "rect");
      for (const [each, y, height, kind] of [[back, 0, high, "back"], [rect, high - tall, tall, "bin"]]) {
        each.setAttribute("x", String((k * wide) / bins.length));
        each.setAttribute("y", String(y));
        each.setAttribute("width", String(wide / bins.length - (kind === "bin" ? 1 : 0)));
        each.setAttribute("height", String(height));
        each.setAttribute("class", kind);
      }
      back.setAttribute("tabindex", k ? "-1" : "0");
      back.setAttribute("role", "button");
      back.setAttribute("aria-label", `${short(bin.lo)} to ${short(bin.hi)}: ${count(bin.count)}`);
      svg.append(rect, back);
      return { back, rect };
    });
    const paint = () => {
      const [lo, hi] = from === null ? [-1, -1] : [Math.min(from, to), Math.max(from, to)];
      rects.forEach(({ rect }, k) => rect.classList.toggle("on", k >= lo && k <= hi));
      words.textContent = from === null ? whole() : `${short(bins[lo].lo)} to ${short(bins[hi].hi)}: ${count(bins.slice(lo, hi + 1).reduce((sum, bin) => sum + bin.count, 0))}`;
    };
    const choose = () => {
      const [lo, hi] = [Math.min(from, to), Math.max(from, to)];
      const kept = conditions(list.where).filter((part) => !bins.some((bin) => part === bin.from || part === bin.to));
      filter([...kept.map(guarded), bins[lo].from, bins[hi].to].join(" and "));
    };
    const at = (event) => {
      const box = svg.getBoundingClientRect();
      return Math.max(0, Math.min(bins.length - 1, Math.floor(((event.clientX - box.left) / box.width) * bins.length)));
    };
    svg.addEventListener("pointerdown", (event) => {
      svg.setPointerCapture(event.pointerId);
      from = to = at(event);
      paint();
    });
    svg.addEventListener("pointermove", (event) => {
      if (!svg.hasPointerCapture(event.pointerId)) return;
      to = at(event);
      paint();
    });
    svg.addEventListener("pointerup", (event) => {
      to = at(event);
      choose();
    });
    svg.addEventListener("keydown", (event) => {
      const now = rects.findIndex(({ back }) => back === document.activeElement);
      if (now < 0) return;
      if (event.key === "ArrowRight" || event.key === "ArrowLeft") {
        const next = Math.max(0, Math.min(bins.length - 1, now + (event.key === "ArrowRight" ? 1 : -1)));
        if (!event.shiftKey || from === null) from = next;
        to = next;
        rects[next].back.focus();
        paint();
      } else if (event.key === "Enter" || event.key === " ") {
        if (from === null) from = to = now;
        choose();
      } else return;
      event.preventDefault();
      event.stopPropagation();
    });
    return make("div", {}, svg, words);
  }

  return { showFacets, columns };
}

const written = (name) => (/^[a-z_][a-z0-9_]*$/i.test(name) && name !== "index" ? name : `"${name.replaceAll('"', '""')}"`);

/** A filter over the first columns: an example of how one is written. */
function example(columns) {
  const parts = [[/^bool/, (name) => name], [/^u?int|^double|^float/, (name) => `${name} >= 3`], [/string/, (name) => `${name} ilike '%cat%'`]];
  const found = parts.map(([kind, write]) => [columns.find((each) => each.has_facet && kind.test(each.type)), write]);
  return found.filter(([column]) => column).slice(0, 2).map(([column, write]) => write(written(column.name))).join(" and ");
}

const short = (value) => (typeof value === "number" && !Number.isInteger(value) ? String(Number(value.toPrecision(4))) : typeof value === "number" ? value.toLocaleString("en") : String(value));

/** A condition that may stand beside `and`. */
const guarded = (part) => (/\b(or|--|case|between)\b|--/i.test(part) ? `(\n${part}\n)` : part);

/** The conditions of a filter that `and` joins at its outermost level; texts, names and parentheses are not looked into. */
export function conditions(where) {
  const parts = [];
  let [depth, start, at] = [0, 0, 0];
  const text = where.trim();
  if (!text) return parts;
  if (text.includes("--") || text.includes("/*") || /\bbetween\b|\bor\b|\bcase\b|\$/i.test(text.replaceAll(/'(?:[^']|'')*'|"(?:[^"]|"")*"|\([^()]*\)/g, ""))) return [text];
  while (at < text.length) {
    const letter = text[at];
    if (letter === "'" || letter === '"') {
      at = text.indexOf(letter, at + 1);
      if (at < 0) return [text];
    } else if (letter === "(" || letter === "[") depth += 1;
    else if (letter === ")" || letter === "]") depth -= 1;
    else if (!depth && /^\sand\s/i.test(text.slice(at, at + 5))) {
      parts.push(text.slice(start, at).trim());
      start = at + 5;
      at += 4;
    }
    at += 1;
  }
  parts.push(text.slice(start).trim());
  return parts.filter(Boolean);
}
