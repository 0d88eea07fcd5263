// Parallel coordinates: all parameters in which tasks differ and what came of it, side by side, each task one line.
import { element, showNumber, shorten } from "./text.js";
import { shade, themeColour } from "./palette.js";
import { spansTens } from "./scales.js";
import { givenOf, variedParameters } from "./tasks.js";
import { PenChart, section } from "./parts.js";

const HEIGHT = 400, TOP = 34, BOTTOM = 18, MOST_AXES = 12, MOST_LINES = 2000, APART = 0.055;

/** Draw the chart of these rows into a container; drag over an axis to keep the tasks that pass there. */
export function parallelChart(container, rows, metric, isMaximised) {
  const panel = section("All parameters at once"), shownRows = rows.slice(0, MOST_LINES), names = variedParameters(rows).slice(0, MOST_AXES);
  const came = shownRows.map((row) => row.metrics[metric][1] ?? row.metrics[metric][0]);
  const axes = [...names.map((name) => axisOf(name, shownRows.map((row) => givenOf(row, name) ?? null))), axisOf(metric, came)];
  const right = axes.length - 1, merit = axes[right].shares.map((share) => (isMaximised ? share : 1 - share));
  const order = shownRows.map((_, number) => number).sort((a, b) => merit[a] - merit[b]), rank = new Map(order.map((number, place) => [number, place]));
  const kept = new Map(); // by axis: from which share to which
  const chart = new PenChart(panel, "parallel", { label: `Parallel coordinates of ${shownRows.length} tasks: ${names.join(", ")} and ${metric}.`, height: HEIGHT, draw, rows: () => [["task", ...names, metric], ...shownRows.map((row, number) => [row.name, ...names.map((name) => givenOf(row, name)), came[number]])] });
  const all = element("button", { type: "button", hidden: true, onclick: () => { kept.clear(); all.hidden = true; chart.draw(); } }, "Keep all tasks");
  panel.firstChild.append(" ", chart.downloads);
  panel.append(element("p", { class: "note" }, "From orange, worse, to blue, better. Drag along an axis to keep the tasks that pass there. ", all));
  container.append(panel);
  const place = (axis, width) => 70 + (axis / Math.max(right, 1)) * (width - 140), up = (share) => HEIGHT - BOTTOM - share * (HEIGHT - TOP - BOTTOM);
  // Tasks that share a value lie beside each other, as far as there is room.
  const aside = (axis, number) => (axes[axis].tied && axis < right ? 0.04 * (rank.get(number) / Math.max(order.length - 1, 1) - 0.5) : 0);
  const passes = (number) => [...kept].every(([axis, [low, high]]) => { const share = axes[axis].shares[number] + aside(axis, number); return share >= low && share <= high; });

  function draw(pen, width) {
    for (const isKept of [false, true]) for (const number of order) {
      if (passes(number) !== isKept) continue;
      const points = axes.map((axis, at) => [place(at, width), up(axis.shares[number] + aside(at, number))]);
      pen.line(points, isKept ? { stroke: shade(merit[number]), width: 1.4, alpha: 0.8 } : { stroke: themeColour("line"), width: 0.8, alpha: 0.6 });
    }
    axes.forEach((axis, at) => {
      const x = place(at, width);
      pen.line([[x, up(0)], [x, up(1)]], { stroke: themeColour("muted"), width: 1.2 });
      pen.text(x, 14, shorten(axis.label, Math.max(Math.floor(width / axes.length / 7.5), 6)), { fill: themeColour("ink"), size: 12, align: "center" });
      for (const [share, text] of axis.ticks) pen.text(x + (at === right ? 6 : -6), up(share), shorten(text, 12), { fill: themeColour("muted"), size: 11, align: at === right ? "left" : "right" });
      const range = kept.get(at);
      if (range) pen.rect(x - 6, up(range[1]), 12, up(range[0]) - up(range[1]), { fill: themeColour("accent"), alpha: 0.3 });
    });
  }

  let pressed = null;
  const at = (event) => { const bounds = chart.canvas.getBoundingClientRect(); return [event.clientX - bounds.left, event.clientY - bounds.top]; };
  const share = (y) => Math.min(Math.max((HEIGHT - BOTTOM - y) / (HEIGHT - TOP - BOTTOM), -0.05), 1.05);
  chart.canvas.addEventListener("pointerdown", (event) => {
    const [x, y] = at(event), axis = axes.findIndex((_, number) => Math.abs(place(number, chart.width) - x) < 24);
    if (axis >= 0) { pressed = [axis, share(y)]; chart.canvas.setPointerCapture(event.pointerId); }
  });
  chart.canvas.addEventListener("pointermove", (event) => {
    if (!pressed) return;
    const now = share(at(event)[1]);
    kept.set(pressed[0], [Math.min(pressed[1], now), Math.max(pressed[1], now)]);
    all.hidden = false;
    chart.draw();
  });
  chart.canvas.addEventListener("pointerup", () => { pressed = null; });
  chart.draw();
}

/** Where values lie on an axis, from 0 to 1. Numbers over several powers of ten lie by their logarithms, words in order. */
export function axisOf(name, values) {
  const words = values.map((value) => (value === null ? "none" : typeof value === "number" ? showNumber(value) : String(value)));
  const distinct = [...new Set(words)].sort((a, b) => a.localeCompare(b, undefined, { numeric: true })), order = new Map(distinct.map((word, number) => [word, number]));
  const numbers = values.every((value) => typeof value === "number" && Number.isFinite(value)), tens = numbers && spansTens(values);
  const places = values.map((value, number) => (!numbers ? order.get(words[number]) : tens ? Math.log10(value) : value));
  const low = places.reduce((a, b) => Math.min(a, b), Infinity), span = places.reduce((a, b) => Math.max(a, b), -Infinity) - low;
  const shares = places.map((at) => (span ? (at - low) / span : 0.5)), first = new Map();
  words.forEach((word, number) => { if (!first.has(word)) first.set(word, shares[number]); });
  const each = distinct.map((word) => [first.get(word), word]), nearest = (share) => each.reduce((a, b) => (Math.abs(b[0] - share) < Math.abs(a[0] - share) ? b : a));
  return { label: name, shares, places, ticks: apart(distinct.length > 8 ? [...new Set([0, 0.25, 0.5, 0.75, 1].map(nearest))] : each), tied: distinct.length < values.length };
}

// The ticks whose labels do not lie on each other, both ends among them.
function apart(ticks) {
  const order = [...ticks].sort(([a], [b]) => a - b), last = order[order.length - 1], found = [];
  for (const tick of order) {
    const room = (other) => Math.abs(tick[0] - other[0]) >= APART;
    if (tick === last || (room(last) && (!found.length || room(found[found.length - 1])))) found.push(tick);
  }
  return found;
}
