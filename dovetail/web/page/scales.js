// From values to places on an axis, and which values an axis names.
import { showNumber } from "./text.js";
import { themeColour } from "./palette.js";

/** A scale from [low, high] to [from, to]; with `tens`, by logarithm. */
export function scale(low, high, from, to, tens = false) {
  const inside = tens ? Math.log10 : (value) => value;
  const first = inside(low), span = inside(high) - first || 1;
  return (value) => from + ((inside(value) - first) / span) * (to - from);
}

/** Round values within [low, high], about `count` of them. */
export function ticks(low, high, count = 6, tens = false) {
  if (!(high > low)) return [low];
  if (tens) {
    const found = [];
    for (let power = Math.floor(Math.log10(low)); power <= Math.ceil(Math.log10(high)); power += 1) found.push(10 ** power);
    const inside = found.filter((value) => value >= low && value <= high);
    if (inside.length >= 2) return inside.filter((_, place) => place % Math.ceil(inside.length / count) === 0);
  }
  const rough = (high - low) / count, power = 10 ** Math.floor(Math.log10(rough));
  const step = [1, 2, 5, 10].map((each) => each * power).find((each) => each >= rough);
  const found = [];
  for (let at = Math.ceil(low / step) * step; at <= high + step * 1e-9; at += step) found.push(Number(at.toPrecision(12)));
  return found;
}

const STEPS = [1e-3, 1e-2, 0.1, 0.5, 1, 5, 10, 30, 60, 300, 600, 1800, 3600, 7200, 21600, 43200, 86400, 172800, 604800, 2592000];

/** Moments within [low, high] that people like to read, in seconds since the origin, and how to write them. */
export function timeTicks(low, high, count = 8) {
  const step = STEPS.find((each) => (high - low) / each <= count) ?? (high - low) / count;
  const found = [];
  for (let at = Math.ceil(low / step) * step; at <= high; at += step) found.push(at);
  return found.map((at) => [at, writeTime(at, step)]);
}

export function writeTime(seconds, step = 1) {
  const sign = seconds < -1e-9 ? "−" : "", size = Math.abs(seconds);
  if (step < 1) return `${sign}${Number(size.toFixed(3))} s`;
  if (step < 60 && size < 60) return `${sign}${Math.round(size)} s`;
  const minutes = Math.floor(size / 60 + 1e-9), hours = Math.floor(minutes / 60), two = (number) => String(number).padStart(2, "0");
  if (step < 60) return `${sign}${hours ? `${hours}:${two(minutes % 60)}` : minutes}:${two(Math.round(size % 60))}`;
  if (step < 3600) return hours ? `${sign}${hours} h ${two(minutes % 60)}` : `${sign}${minutes} min`;
  return hours < 72 ? `${sign}${hours} h` : `${sign}${(hours / 24).toFixed(step < 86400 ? 1 : 0)} d`;
}

export const spansTens = (values) => values.length > 1 && values.every((value) => value > 0) && Math.max(...values) > 20 * Math.min(...values);

/** Lines and numbers of a box {left, top, right, bottom}; ticks are [place, text]. */
export function drawAxes(pen, box, { x, y, xTitle = "", yTitle = "" }) {
  const grid = themeColour("grid"), muted = themeColour("muted");
  for (const [at, text] of y) {
    pen.line([[box.left, at], [box.right, at]], { stroke: grid });
    pen.text(box.left - 6, at, text, { fill: muted, size: 11, align: "right" });
  }
  for (const [at, text] of x) {
    pen.line([[at, box.top], [at, box.bottom]], { stroke: grid });
    pen.text(at, box.bottom + 12, text, { fill: muted, size: 11, align: "center" });
  }
  if (xTitle) pen.text((box.left + box.right) / 2, box.bottom + 30, xTitle, { fill: muted, align: "center" });
  if (yTitle) pen.text(14, (box.top + box.bottom) / 2, yTitle, { fill: muted, align: "center", turn: -90 });
}

export const numberTicks = (low, high, place, count, tens) => ticks(low, high, count, tens).map((value) => [place(value), showNumber(value)]);
