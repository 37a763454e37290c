// A list of up to 10^9 places, cells beside each other or lines below each other, of which those in sight are elements. What is in sight is known by `#top`, in pixels from the
// beginning; the scroll bar has less room than that (browsers end at some 10^7 pixels), so that it stands for `#top` in a
// shortened form: exact at both ends, in proportion between. A wheel or a finger moves by what it moves; a scroll bar jumps.
import { make } from "./common.js";
import { discard } from "./cells.js";

const ROOM = 8e6; // pixels that the scroll bar has at most
const EDGE = 2e4; // that are exact at both ends
const GAP = 10;
const CAPTION = 27;
const PAD = 10;
const ACROSS = 120; // pixels that an arrow moves lines

export class Grid {
  #root; #stage; #rest; #draw; #onmove; #total = 0; #size = 150; #columns = 1; #width = 0; #high = 0; #view = 0;
  #lines = null; #gap = GAP; #pad = PAD; #top = 0; #scrolled = 0; #timer; #frame; #live = new Map(); #current = 0;

  /**
   * `draw(at)`: the element of a place. `onmove(first, end)`: these places are in sight now.
   * `onkey(event, at)`: a key that moves nothing.
   */
  constructor(root, { draw, onmove, onkey }) {
    [this.#root, this.#draw, this.#onmove] = [root, draw, onmove];
    this.#stage = make("div", { class: "stage", role: "presentation" });
    this.#rest = make("div", { class: "rest", role: "presentation" });
    root.append(this.#stage, this.#rest);
    root.addEventListener("scroll", () => this.#scroll());
    root.addEventListener("keydown", (event) => this.#key(event, onkey));
    root.addEventListener("pointerdown", (event) => {
      const at = this.at(event.target);
      if (at !== null) this.current = at;
    });
    root.addEventListener("mousedown", (event) => {
      if (!event.target.closest("[data-at]")) return; // the scroll bar
      event.preventDefault(); // keys stay with the grid
      root.focus({ preventScroll: true });
    });
    new ResizeObserver(() => this.#measure()).observe(root);
  }

  get total() { return this.#total; }
  get current() { return this.#current; }
  get columns() { return this.#columns; }

  /** The first place whose row begins in sight. */
  get first() { return Math.min(Math.ceil((this.#top - this.#pad) / this.#high - 0.5) * this.#columns, Math.max(this.#total - 1, 0)) || 0; }

  set current(at) {
    const before = this.#live.get(this.#current);
    before?.classList.remove("current");
    this.#current = Math.max(0, Math.min(at, this.#total - 1));
    this.#point();
  }

  set size(pixels) {
    const first = this.first;
    this.#size = pixels;
    this.#measure(first);
  }

  /**
   * Have a line for each place: `high` pixels, at least `width` wide, below `head` pixels that the root has at its top and
   * that stay there; null: have cells.
   */
  set lines(lines) {
    const first = this.first;
    this.#lines = lines;
    [this.#gap, this.#pad] = lines ? [0, 0] : [GAP, PAD];
    this.#root.setAttribute("role", lines ? "grid" : "listbox");
    this.#stage.setAttribute("role", lines ? "rowgroup" : "presentation");
    this.#stage.style.top = `${lines?.head ?? 0}px`;
    this.#drop();
    this.#measure(first);
  }

  /** Have so many places, and show one of them. */
  reset(total, at = 0) {
    this.#total = total;
    this.#drop();
    this.#current = Math.max(0, Math.min(at, total - 1));
    this.#measure(this.#current);
  }

  /** Show a place; `isTop`: in the first row, else where it is if it is in sight. */
  show(at, { isTop = true } = {}) {
    const row = Math.floor(at / this.#columns) * this.#high;
    const [lo, hi] = [this.#top, this.#top + this.#view];
    if (isTop || row < lo - this.#view || row > hi + this.#view) this.#go(row);
    else if (row < lo) this.#go(row);
    else if (row + this.#high + this.#pad > hi) this.#go(row + this.#high + this.#pad - this.#view);
    this.current = at;
  }

  /** Draw places anew whose rows have changed. */
  renew(first = 0, end = Infinity) {
    for (const [at, element] of this.#live) {
      if (at >= first && at < end) this.#remove(at, element);
    }
    this.#render();
  }

  /** The place of an element in a cell; null: of none. */
  at(element) {
    const found = element.closest?.("[data-at]");
    return found && this.#root.contains(found) ? Number(found.dataset.at) : null;
  }

  element(at) { return this.#live.get(at); }
  places() { return this.#live.entries(); }

  get #pixels() { return Math.ceil(this.#total / this.#columns) * this.#high - this.#gap + 2 * this.#pad; }
  get #end() { return Math.max(0, this.#pixels - this.#view); }
  get #room() { return Math.min(this.#pixels, ROOM); }

  #measure(first = this.first) {
    const lines = this.#lines;
    const [width, view] = [this.#root.clientWidth - 2 * this.#pad, this.#root.clientHeight - (lines?.head ?? 0)];
    if (width <= 0 || view <= 0) return;
    this.#columns = lines ? 1 : Math.max(1, Math.floor((width + GAP) / (this.#size + GAP)));
    this.#width = lines ? Math.max(width, lines.width) : (width - GAP * (this.#columns - 1)) / this.#columns;
    this.#high = lines ? lines.high : Math.round(this.#width + CAPTION) + GAP;
    this.#stage.style.width = lines ? `${this.#width}px` : "";
    if (lines) this.#root.setAttribute("aria-rowcount", String(this.#total + 1));
    else this.#root.removeAttribute("aria-rowcount");
    this.#view = view;
    this.#stage.style.height = `${view}px`;
    this.#rest.style.height = `${Math.max(0, this.#room - view)}px`;
    this.#drop();
    this.#go(Math.floor(first / this.#columns) * this.#high);
  }

  #toBar(top) {
    const [end, bar] = [this.#end, this.#room - this.#view];
    if (end <= bar || top <= EDGE) return top;
    if (end - top <= EDGE) return bar - (end - top);
    return EDGE + ((top - EDGE) / (end - 2 * EDGE)) * (bar - 2 * EDGE);
  }

  #fromBar(place) {
    const [end, bar] = [this.#end, this.#room - this.#view];
    if (end <= bar || place <= EDGE) return place;
    if (bar - place <= EDGE) return end - (bar - place);
    return EDGE + ((place - EDGE) / (bar - 2 * EDGE)) * (end - 2 * EDGE);
  }

  #go(top) {
    this.#top = Math.max(0, Math.min(top, this.#end));
    this.#settle();
    this.#render();
  }

  /** Have the scroll bar stand where it belongs. */
  #settle() {
    clearTimeout(this.#timer);
    const place = this.#toBar(this.#top);
    if (Math.abs(this.#root.scrollTop - place) >= 1) this.#root.scrollTop = place;
    this.#scrolled = this.#root.scrollTop;
  }

  #scroll() {
    const place = this.#root.scrollTop;
    const moved = place - this.#scrolled;
    if (moved === 0) return;
    this.#scrolled = place;
    if (this.#end + this.#view <= ROOM) this.#top = place;
    else if (Math.abs(moved) <= 2 * this.#view) this.#top += moved;
    else this.#top = this.#fromBar(place);
    this.#top = Math.max(0, Math.min(this.#top, this.#end));
    clearTimeout(this.#timer);
    if (place <= 0 || place >= this.#room - this.#view - 1) this.#settle();
    else this.#timer = setTimeout(() => this.#settle(), 200);
    cancelAnimationFrame(this.#frame);
    this.#frame = requestAnimationFrame(() => this.#render());
  }

  #drop() {
    for (const [at, element] of this.#live) this.#remove(at, element);
  }

  #remove(at, element) {
    discard(element);
    this.#live.delete(at);
  }

  #render() {
    if (!this.#high) return;
    const rows = Math.ceil(this.#total / this.#columns);
    const lo = Math.max(0, Math.floor((this.#top - this.#pad) / this.#high));
    const hi = Math.min(rows, Math.ceil((this.#top + this.#view) / this.#high));
    const [first, end] = [lo * this.#columns, Math.min(hi * this.#columns, this.#total)];
    for (const [at, element] of this.#live) {
      if (at < first || at >= end) this.#remove(at, element);
    }
    for (let at = first; at < end; at += 1) {
      let element = this.#live.get(at);
      if (!element) {
        element = this.#draw(at);
        element.dataset.at = String(at);
        element.id = `at-${at}`;
        element.setAttribute("role", this.#lines ? "row" : "option");
        if (this.#lines) element.setAttribute("aria-rowindex", String(at + 2));
        else element.setAttribute("aria-posinset", String(at + 1)), element.setAttribute("aria-setsize", String(this.#total));
        element.style.width = `${this.#width}px`;
        element.style.height = `${this.#high - this.#gap}px`;
        this.#live.set(at, element);
        this.#stage.append(element);
      }
      const left = this.#pad + (at % this.#columns) * (this.#width + this.#gap);
      const below = Math.floor(at / this.#columns) * this.#high + this.#pad - this.#top;
      element.style.transform = `translate(${left}px, ${below}px)`;
    }
    this.#point();
    this.#onmove(first, end);
  }

  #point() {
    const element = this.#live.get(this.#current);
    element?.classList.add("current");
    if (element) this.#root.setAttribute("aria-activedescendant", element.id);
    else this.#root.removeAttribute("aria-activedescendant");
  }

  #key(event, onkey) {
    if (event.ctrlKey || event.metaKey || event.altKey || event.target.closest("input, select, textarea, .head")) return;
    if (this.#lines && (event.key === "ArrowRight" || event.key === "ArrowLeft")) {
      this.#root.scrollLeft += event.key === "ArrowRight" ? ACROSS : -ACROSS;
      return event.preventDefault();
    }
    const page = Math.max(1, Math.floor(this.#view / this.#high)) * this.#columns;
    const steps = { ArrowRight: 1, ArrowLeft: -1, ArrowDown: this.#columns, ArrowUp: -this.#columns, PageDown: page, PageUp: -page,
      Home: -Infinity, End: Infinity };
    if (!(event.key in steps)) return onkey(event, this.#current);
    event.preventDefault();
    const to = Math.max(0, Math.min(this.#current + steps[event.key], this.#total - 1));
    this.show(to, { isTop: false });
  }
}
