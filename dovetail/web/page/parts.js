// Pieces that several views are made of.
import { chip, element, showMoment } from "./text.js";
import { state } from "./state.js";
import { addressOf } from "./route.js";
import { CanvasPen, downloads } from "./pen.js";

/** What an address has to say of the store, where it is not the first. */
export const storeWord = () => (state.store ? { store: state.store } : {});
export const section = (title, ...children) => element("section", {}, element("h2", {}, title), ...children);
export const folded = (title, ...children) => element("details", {}, element("summary", {}, title), ...children);
export const list = (lines) => element("ul", { class: "lines" }, lines.map((line) => element("li", {}, line)));
export const taskLink = (id) => (state.tasks.has(id) ? element("a", { href: addressOf("task", { id, ...storeWord() }) }, state.name(id)) : id);

const drawn = new WeakMap();

/** Draw into a container only where what it is drawn from has changed: what a reader has unfolded stays so. */
export function redraw(container, basis, draw) {
  const text = JSON.stringify(basis);
  if (drawn.get(container) === text) return;
  drawn.set(container, text);
  draw(container);
}

/** Something that happened, with its task, its moment, its words and what was logged. */
export function incident(kind, { task, attempt, at, text, log }) {
  const who = task ? element("span", {}, taskLink(task), attempt ? `, attempt ${attempt}` : "") : null;
  return element("li", {}, element("div", { class: "line" }, chip(kind), who, at ? element("span", { class: "when" }, showMoment(at)) : null),
    text ? element("p", {}, text) : null, log ? folded("End of the log", element("pre", { tabindex: "0" }, log)) : null);
}

/** A chart that is drawn with a pen: on a canvas as wide as there is room, of a height, with what it shows in words. */
export class PenChart {
  constructor(container, name, { label, height, draw, rows, hover }) {
    this.canvas = element("canvas", { role: "img", "aria-label": label });
    this.hint = element("div", { class: "hint", hidden: true });
    this.node = element("div", { class: "chart" }, this.canvas, this.hint);
    this.height = height; this.drawWith = draw;
    this.downloads = downloads(name, { size: () => [this.width, this.heightNow], draw: (pen, width, tall) => draw(pen, width, tall), rows });
    if (hover) this.listen(hover);
    container.append(this.node);
  }

  get heightNow() { return typeof this.height === "function" ? this.height() : this.height; }

  draw() {
    this.width = Math.max(this.node.clientWidth, 240);
    this.drawWith(new CanvasPen(this.canvas, this.width, this.heightNow), this.width, this.heightNow);
  }

  listen(hover) {
    this.canvas.addEventListener("pointermove", (event) => {
      const box = this.canvas.getBoundingClientRect(), x = event.clientX - box.left, y = event.clientY - box.top, lines = hover(x, y);
      this.hint.hidden = !lines;
      if (!lines) return;
      this.hint.replaceChildren(...lines.map((text, place) => element(place ? "span" : "b", {}, text)));
      this.hint.style.left = `${Math.min(x + 14, Math.max(this.width - 260, 0))}px`;
      this.hint.style.top = `${y + 16}px`;
    });
    this.canvas.addEventListener("pointerleave", () => { this.hint.hidden = true; });
  }
}
