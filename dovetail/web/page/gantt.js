// The Gantt chart: what was planned above what ran, for each device, on a canvas: ten thousand placements are one drawing.
import { element, showNumber, showSeconds } from "./text.js";
import { state } from "./state.js";
import { colourOf, textOn, themeColour } from "./palette.js";
import { CanvasPen, downloads } from "./pen.js";
import { timeTicks } from "./scales.js";
import { here, keepChosen } from "./route.js";
import { placesOf } from "./bars.js";

const LEFT = 92, TOP = 6, BOTTOM = 30, TALLEST = 46, LOWEST = 7, MOST_HEIGHT = 900;
const LINES = 8;

export class Gantt {
  constructor(container, { onOpen }) {
    this.canvas = element("canvas", { tabindex: "0", role: "img", "aria-label": "Schedule: planned and measured placements of every device over time. Arrow keys move, plus and minus zoom, 0 shows all." });
    this.hint = element("div", { class: "hint", hidden: true });
    this.chart = element("div", { class: "chart" }, this.canvas, this.hint);
    container.append(this.chart);
    this.onOpen = onOpen;
    this.devices = []; this.measured = []; this.planned = []; this.lanes = [[], []];
    this.range = null;
    this.listen();
  }

  get downloads() {
    return downloads("schedule", { size: () => [this.width, this.height], draw: (pen) => this.drawWith(pen, true), rows: () => this.rows() });
  }

  show(devices, measured, planned) {
    this.devices = devices; this.measured = measured; this.planned = planned;
    const place = new Map(devices.map((device, number) => [device, number]));
    this.lanes = [planned, measured].map((bars) => {
      const lanes = devices.map(() => []);
      for (const bar of bars) for (const device of bar.devices) lanes[place.get(device)]?.push(bar);
      for (const lane of lanes) lane.sort((a, b) => a.start - b.start);
      return lanes;
    });
    this.longest = this.lanes.map((lanes) => Math.max(0, ...lanes.flat().map((bar) => this.end(bar) - bar.start).slice(0, 100_000)));
    this.draw();
  }

  end(bar) { return bar.end ?? Math.max(state.now, bar.start); }

  whole() {
    const origin = state.data.origin ?? 0;
    let high = origin + 1;
    for (const bars of [this.measured, this.planned]) for (const bar of bars) { const end = this.end(bar); if (end > high) high = end; }
    return [0, (high - origin) * 1.02];
  }

  get shown() {
    if (this.range) return this.range;
    const { chosen } = here(), from = Number(chosen.get("from")), to = Number(chosen.get("to"));
    return to > from ? [from, to] : this.whole();
  }

  look(range) {
    this.range = range;
    this.draw();
    clearTimeout(this.noting);
    this.noting = setTimeout(() => keepChosen(range ? { from: range[0].toFixed(2), to: range[1].toFixed(2) } : { from: "", to: "" }), 200);
  }

  zoom(factor, share = 0.5) {
    const [low, high] = this.shown, at = low + share * (high - low);
    this.look([at - (at - low) * factor, at + (high - at) * factor]);
  }

  pan(share) {
    const [low, high] = this.shown, by = share * (high - low);
    this.look([low + by, high + by]);
  }

  draw() {
    if (this.drawing) return;
    this.drawing = requestAnimationFrame(() => {
      this.drawing = null;
      this.width = Math.max(this.chart.clientWidth, 260);
      const count = Math.max(this.devices.length, 1);
      this.lane = Math.min(TALLEST, Math.max(LOWEST, (MOST_HEIGHT - TOP - BOTTOM) / count));
      this.height = TOP + BOTTOM + this.lane * count;
      this.drawWith(new CanvasPen(this.canvas, this.width, this.height), false);
    });
  }

  drawWith(pen, isFile) {
    const [low, high] = this.shown, { width, lane } = this, origin = state.data.origin ?? 0;
    const place = (seconds) => LEFT + ((seconds - origin - low) / (high - low)) * (width - LEFT);
    const bottom = TOP + lane * this.devices.length;
    for (const [at, text] of timeTicks(low, high, Math.max(3, Math.floor(width / 130)))) {
      const x = place(at + origin);
      pen.line([[x, TOP], [x, bottom]], { stroke: themeColour("grid") });
      if (x > LEFT - 1) pen.text(x, bottom + 13, text, { fill: themeColour("muted"), size: 11, align: "center" });
    }
    this.devices.forEach((device, number) => {
      const top = TOP + number * lane;
      this.drawLane(pen, this.lanes[0][number], top + 0.06 * lane, 0.28 * lane, place, true, isFile, 0);
      this.drawLane(pen, this.lanes[1][number], top + 0.38 * lane, 0.54 * lane, place, false, isFile, 1);
    });
    pen.rect(0, 0, LEFT - 4, bottom, { fill: themeColour("panel") });
    const every = Math.ceil(13 / lane);
    this.devices.forEach((device, number) => {
      if (number % every === 0) pen.text(LEFT - 10, TOP + (number + 0.5) * lane, device, { fill: themeColour("ink"), size: 12, align: "right", most: LEFT - 14 });
    });
    const now = place(state.now);
    if (!state.isFrozen && now > LEFT && now < width) pen.line([[now, TOP], [now, bottom]], { stroke: themeColour("bad"), width: 1.5, dash: [4, 3] });
  }

  drawLane(pen, bars, top, height, place, isPlanned, isFile, kind) {
    if (!bars) return;
    const places = placesOf(), right = this.width;
    let drawnTo = -Infinity;
    for (let number = this.firstFrom(bars, kind); number < bars.length; number += 1) {
      const bar = bars[number], from = place(bar.start);
      if (from > right) break;
      const to = Math.max(place(this.end(bar)), from + 1);
      if (to < LEFT || (to - drawnTo < 0.7 && from >= drawnTo - 1)) continue; // thinner than a dot, behind one that is there
      drawnTo = to;
      const x = Math.max(from, LEFT), width = Math.min(to, right + 2) - x, colour = places.get(bar.ids[0]) ?? 0, fill = colourOf(colour);
      if (isPlanned) { pen.rect(x, top, width, height, { fill: `${fill}33`, stroke: width > 3 ? fill : undefined }); continue; }
      const hatch = bar.outcome === "completed" ? undefined : textOn(colour);
      pen.rect(x, top, width, height, { fill, hatch: width > 5 ? hatch : undefined, alpha: bar.outcome === "discarded" ? 0.45 : 1 });
      if (width > 30 && height > 10) pen.text(x + 5, top + height / 2, labelOf(bar), { fill: textOn(colour), size: 11.5, most: width - 8 });
    }
  }

  // The first bar that may reach into what is shown: no bar is longer than the longest.
  firstFrom(bars, kind) {
    const from = this.shown[0] + (state.data.origin ?? 0) - (this.longest?.[kind] ?? 0);
    let low = 0, high = bars.length;
    while (low < high) { const middle = (low + high) >> 1; if (bars[middle].start < from) low = middle + 1; else high = middle; }
    return low;
  }

  barAt(x, y) {
    const number = Math.floor((y - TOP) / this.lane), inside = ((y - TOP) / this.lane) % 1;
    if (x < LEFT || number < 0 || number >= this.devices.length) return null;
    const [low, high] = this.shown, at = low + ((x - LEFT) / (this.width - LEFT)) * (high - low) + (state.data.origin ?? 0);
    const slack = (2 * (high - low)) / (this.width - LEFT);
    const hit = (bars) => bars?.findLast((bar) => bar.start <= at + slack && this.end(bar) >= at - slack) ?? null;
    return inside < 0.36 ? hit(this.lanes[0][number]) : hit(this.lanes[1][number]);
  }

  listen() {
    const { canvas } = this, held = new Map();
    const at = (event) => { const box = canvas.getBoundingClientRect(); return [event.clientX - box.left, event.clientY - box.top]; };
    const share = (x) => Math.min(Math.max((x - LEFT) / (this.width - LEFT), 0), 1);
    canvas.style.touchAction = "pan-y";
    canvas.addEventListener("pointerdown", (event) => { held.set(event.pointerId, at(event)); this.moved = 0; canvas.setPointerCapture(event.pointerId); });
    canvas.addEventListener("pointermove", (event) => {
      const [x, y] = at(event), before = held.get(event.pointerId);
      if (!before) { this.hover(x, y); return; }
      this.moved += Math.abs(x - before[0]);
      if (held.size === 2) {
        const other = [...held.entries()].find(([id]) => id !== event.pointerId)[1];
        const was = Math.abs(before[0] - other[0]) || 1, is = Math.abs(x - other[0]) || 1;
        this.zoom(Math.min(Math.max(was / is, 0.5), 2), share((x + other[0]) / 2));
      } else if (x !== before[0]) this.pan((before[0] - x) / (this.width - LEFT));
      held.set(event.pointerId, [x, y]);
    });
    const release = (event) => {
      if (held.has(event.pointerId) && this.moved < 4 && event.type === "pointerup") { const bar = this.barAt(...at(event)); if (bar) this.onOpen(bar.ids[0]); }
      held.delete(event.pointerId);
    };
    for (const kind of ["pointerup", "pointercancel"]) canvas.addEventListener(kind, release);
    canvas.addEventListener("pointerleave", () => { this.hint.hidden = true; });
    canvas.addEventListener("dblclick", () => this.look(null));
    canvas.addEventListener("wheel", (event) => {
      if (!event.ctrlKey && !event.metaKey && !event.shiftKey) return; // the page itself scrolls
      event.preventDefault();
      this.zoom((event.deltaY || event.deltaX) > 0 ? 1.2 : 1 / 1.2, share(at(event)[0]));
    }, { passive: false });
    const keys = { ArrowLeft: () => this.pan(-0.15), ArrowRight: () => this.pan(0.15), "+": () => this.zoom(1 / 1.4), "=": () => this.zoom(1 / 1.4), "-": () => this.zoom(1.4), 0: () => this.look(null) };
    canvas.addEventListener("keydown", (event) => { if (keys[event.key]) { event.preventDefault(); keys[event.key](); } });
  }

  hover(x, y) {
    const bar = this.barAt(x, y);
    this.hint.hidden = !bar;
    this.canvas.style.cursor = bar ? "pointer" : "grab";
    if (!bar) return;
    this.hint.replaceChildren(...linesOf(bar, this.end(bar)).map((text, place) => element(place ? "span" : "b", {}, text)));
    this.hint.style.left = `${Math.min(x + 14, Math.max(this.width - 350, 0))}px`;
    this.hint.style.top = `${y + 16}px`;
  }

  rows() {
    const head = ["kind", "tasks", "devices", "technique", "start", "end", "predicted seconds", "measured seconds", "steps"];
    const line = (bar) => [bar.outcome, bar.ids.map((id) => state.name(id)).join("; "), bar.devices.join(" "), bar.technique, bar.start, bar.end, bar.predicted, bar.outcome === "planned" ? "" : this.end(bar) - bar.start, bar.steps.join(" ")];
    return [head, ...this.planned.map(line), ...this.measured.map(line)];
  }
}

const labelOf = (bar) => (bar.ids.length === 1 ? state.name(bar.ids[0]) : `${state.name(bar.ids[0])} + ${bar.ids.length - 1}`);

function linesOf(bar, end) {
  const names = bar.ids.slice(0, LINES).map((id, place) => `${state.name(id)}: ${showNumber(bar.steps[place])} steps`);
  if (bar.ids.length > LINES) names.push(`and ${bar.ids.length - LINES} more`);
  const outcome = bar.outcome === "discarded" ? "before it began anew" : bar.outcome;
  const lines = [...names, `${outcome}, ${bar.technique || "technique not known"} on ${bar.devices.join(", ")}`, `predicted ${showSeconds(bar.predicted)}`];
  if (bar.outcome === "planned") return lines;
  const measured = end - bar.start;
  const ratio = bar.outcome === "completed" && bar.predicted ? `, ${(measured / bar.predicted).toFixed(2)} × predicted` : "";
  return [...lines, `measured ${showSeconds(measured)}${bar.outcome === "running" ? " so far" : ratio}`];
}
