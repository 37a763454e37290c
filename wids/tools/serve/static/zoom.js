// A picture that is looked at closely: wheel, + and -, drag, two fingers, double click; whole (0) and one to one (1).
import { make } from "./common.js";

const MOST = 64;
const STEP = 1.25;

/**
 * An element with a picture in it; `width` and `height` are those of its pixels, `onerror(error)` is called for a failure.
 * `under`: the address of another picture of this shape, over which it is laid.
 */
export function zoomable(source, { width, height, name, under, onerror }) {
  const image = make("img", { src: source, alt: name, draggable: "false", width, height, decoding: "async" });
  const view = make("div", { class: "view", tabindex: "0", role: "group", "aria-label": `${name}, + and − zoom` });
  const layers = [image];
  if (under) layers.unshift(make("img", { src: under, alt: "", draggable: "false", width, height }));
  view.append(...layers);
  // No higher than the picture is, enlarged if it is small.
  view.style.aspectRatio = `${width} / ${height}`;
  view.style.maxHeight = `min(62vh, ${Math.max(height * Math.max(1, Math.min(8, Math.floor(320 / Math.max(width, height)))), 120) + 2}px)`;
  const said = make("output", { "aria-live": "polite" });
  const state = { scale: 1, x: 0, y: 0, isFitted: true };
  const fingers = new Map();
  image.addEventListener("error", () => onerror(new Error("the browser cannot draw this picture; it may be damaged")));

  function show() {
    for (const each of layers) each.style.transform = `translate(${state.x}px, ${state.y}px) scale(${state.scale})`;
    image.classList.toggle("sharp", state.scale >= 2);
    said.textContent = `${Math.round(state.scale * 100)} %`;
  }
  const least = () => Math.min(view.clientWidth / width, view.clientHeight / height);
  function centre(scale) {
    Object.assign(state, { scale, x: (view.clientWidth - width * scale) / 2, y: (view.clientHeight - height * scale) / 2 });
    show();
  }
  function fit() {
    state.isFitted = true;
    centre(Math.min(least(), Math.max(1, Math.min(8, Math.floor(least())))));
  }
  function real() {
    state.isFitted = false;
    centre(1);
  }
  function zoom(factor, x = view.clientWidth / 2, y = view.clientHeight / 2) {
    const scale = Math.min(Math.max(state.scale * factor, Math.min(least(), 1) / 2), MOST);
    state.isFitted = false;
    state.x = x - ((x - state.x) * scale) / state.scale;
    state.y = y - ((y - state.y) * scale) / state.scale;
    state.scale = scale;
    show();
  }
  const at = (event) => {
    const box = view.getBoundingClientRect();
    return [event.clientX - box.left, event.clientY - box.top];
  };
  view.addEventListener("wheel", (event) => {
    event.preventDefault();
    zoom(STEP ** (-event.deltaY / (event.deltaMode ? 3 : 100)), ...at(event));
  }, { passive: false });
  view.addEventListener("dblclick", (event) => (state.isFitted ? zoom(1 / state.scale < 1.01 ? 4 : 1 / state.scale, ...at(event)) : fit()));
  view.addEventListener("pointerdown", (event) => {
    fingers.set(event.pointerId, at(event));
    view.setPointerCapture(event.pointerId);
    view.classList.add("dragged");
  });
  view.addEventListener("pointermove", (event) => {
    const before = fingers.get(event.pointerId);
    if (!before) return;
    const now = at(event);
    const other = [...fingers].find(([id]) => id !== event.pointerId)?.[1];
    if (other) {
      const distance = (point) => Math.hypot(point[0] - other[0], point[1] - other[1]) || 1;
      zoom(distance(now) / distance(before), (now[0] + other[0]) / 2, (now[1] + other[1]) / 2);
    } else {
      state.isFitted = false;
      state.x += now[0] - before[0];
      state.y += now[1] - before[1];
      show();
    }
    fingers.set(event.pointerId, now);
  });
  for (const end of ["pointerup", "pointercancel"]) {
    view.addEventListener(end, (event) => {
      fingers.delete(event.pointerId);
      if (!fingers.size) view.classList.remove("dragged");
    });
  }
  const orders = { "+": () => zoom(STEP), "=": () => zoom(STEP), "-": () => zoom(1 / STEP), 0: fit, x: real };
  view.addEventListener("keydown", (event) => {
    if (event.ctrlKey || event.metaKey || event.altKey || !orders[event.key]) return;
    orders[event.key]();
    event.preventDefault();
  });
  new ResizeObserver(() => (state.isFitted ? fit() : show())).observe(view);
  const button = (text, title, order) => make("button", { type: "button", title, "aria-label": title, onclick: order }, text);
  const bar = make("div", { class: "view-bar" },
    button("−", "Smaller (-)", orders["-"]), button("+", "Larger (+)", orders["+"]),
    button("Fit", "The whole picture (0)", fit), button("100 %", "One to one (x)", real), said);
  if (under) {
    const strength = make("input", { type: "range", min: "0", max: "100", value: "60", oninput: () => (image.style.opacity = strength.value / 100) });
    image.style.opacity = 0.6;
    bar.append(make("label", { class: "inline" }, "mask ", strength));
  }
  return make("div", {}, view, bar);
}
