// Curves over steps or time, by uPlot; with smoothing, bands over seeds, a logarithmic scale, and one without runaways.
import { element, fill, shorten, showNumber } from "./text.js";
import { colourOf, dashOf, themeColour } from "./palette.js";
import { downloads } from "./pen.js";
import { drawAxes, numberTicks, scale } from "./scales.js";

const HEIGHT = 400, MOST_POINTS = 24_000, MOST_NAMED = 60;
// Beyond so many times the width of the middle half, a curve's end is no longer worth the scale (Tukey's outer fence).
const FENCE = 3;

/** An average in which older values fade, corrected for its beginning; where there is no value, there is none. */
export function smoothed(values, weight) {
  if (!weight) return values;
  let sum = 0, mass = 0;
  return values.map((value) => {
    if (value === null) return null;
    sum = weight * sum + (1 - weight) * value;
    mass = weight * mass + (1 - weight);
    return sum / mass;
  });
}

/** Tasks that differ in their seed alone: at each step where any has a value, the mean, the least and the greatest. */
export function bandsOf(curves) {
  const groups = new Map();
  for (const curve of curves) groups.set(curve.group, [...(groups.get(curve.group) ?? []), curve]);
  return [...groups].map(([name, members]) => {
    const found = new Map();
    for (const curve of members) curve.steps.forEach((step, place) => {
      if (curve.y[place] === null) return;
      if (!found.has(step)) found.set(step, []);
      found.get(step).push([curve.x[place], curve.y[place]]);
    });
    const mean = (list) => list.reduce((sum, each) => sum + each, 0) / list.length;
    const rows = [...found].sort(([a], [b]) => a - b).map(([, pairs]) => {
      const values = pairs.map(([, value]) => value);
      return [mean(pairs.map(([x]) => x)), mean(values), Math.min(...values), Math.max(...values)];
    });
    const column = (place) => rows.map((row) => row[place]);
    return { label: members.length > 1 ? `${name} (${members.length})` : members[0].label, place: members[0].place, x: column(0), y: column(1), low: members.length > 1 ? column(2) : null, high: column(3) };
  });
}

/** The values to show where some curves run away so far that the others would be a flat line; null where none does. */
export function robustRange(curves) {
  const ends = curves.map((curve) => curve.y.filter((value) => value !== null)).filter((values) => values.length).map((values) => [least(values), greatest(values)]);
  if (ends.length < 4) return null;
  const low = fence(ends.map(([a]) => a))[0], high = fence(ends.map(([, b]) => b))[1];
  const inside = ends.filter(([a, b]) => a >= low && b <= high);
  if (inside.length === ends.length || !inside.length) return null;
  const bottom = least(inside.map(([a]) => a)), top = greatest(inside.map(([, b]) => b)), margin = 0.05 * (top - bottom);
  return [bottom - margin, top + margin];
}

const least = (values) => values.reduce((a, b) => Math.min(a, b), Infinity);
const greatest = (values) => values.reduce((a, b) => Math.max(a, b), -Infinity);

function fence(values) {
  const order = [...values].sort((a, b) => a - b), quartile = (share) => {
    const at = share * (order.length + 1) - 1, from = Math.min(Math.max(Math.floor(at), 0), order.length - 2);
    return order[from] + (at - from) * (order[from + 1] - order[from]);
  };
  const low = quartile(0.25), high = quartile(0.75), reach = FENCE * Math.max(high - low, 1e-9 * greatest(values.map(Math.abs)));
  return [low - reach, high + reach];
}

// Both ends, and the lowest and highest value of each stretch between, so that no spike is lost.
function thinned(curve, most) {
  const count = curve.x.length;
  if (count <= Math.max(most, 4)) return curve;
  const stretches = Math.max(Math.floor((most - 2) / 2), 1), kept = new Set([0, count - 1]);
  for (let number = 0; number < stretches; number += 1) {
    const from = 1 + Math.floor((number * (count - 2)) / stretches), to = 1 + Math.floor(((number + 1) * (count - 2)) / stretches);
    let low = -1, high = -1;
    for (let at = from; at < to; at += 1) {
      if (curve.y[at] === null) continue;
      if (low < 0 || curve.y[at] < curve.y[low]) low = at;
      if (high < 0 || curve.y[at] > curve.y[high]) high = at;
    }
    for (const at of low < 0 ? [from] : [low, high]) kept.add(at);
  }
  const order = [...kept].sort((a, b) => a - b), take = (values) => values && order.map((at) => values[at]);
  return { ...curve, x: take(curve.x), y: take(curve.y), steps: take(curve.steps), low: take(curve.low), high: take(curve.high) };
}

export class CurvesChart {
  constructor(container, name) {
    this.chart = element("div", { class: "chart", role: "img" });
    this.hint = element("div", { class: "hint", hidden: true });
    this.legend = element("div", { class: "legend", role: "group", "aria-label": "Curves: press one to hide it", tabindex: "0" });
    this.hidden = new Set();
    this.curves = [];
    this.downloads = downloads(name, { size: () => [this.width ?? 800, HEIGHT], draw: (pen, width, height) => this.drawSvg(pen, width, height), rows: () => this.rows() });
    container.append(this.chart, this.legend);
  }

  /** Show curves {label, group, place, steps, x, y}, as `how` says: {xTitle, yTitle, logarithmic, smoothing, bands, robust};
   *  with a `level` {value, label} as a line across, and `marks` {x, y, place} on the chart, where there are any. */
  show(curves, how) {
    const range = how.robust && !how.logarithmic ? robustRange(curves) : null;
    const shown = how.bands ? bandsOf(curves) : curves, most = Math.max(40, Math.floor(MOST_POINTS / Math.max(shown.length, 1)));
    const positive = (values) => (how.logarithmic ? values.map((value) => (value !== null && value > 0 ? value : null)) : values);
    this.curves = shown.map((curve) => {
      const smooth = { ...curve, y: positive(smoothed(curve.y, how.smoothing)), low: curve.low && positive(smoothed(curve.low, how.smoothing)), high: curve.low && positive(smoothed(curve.high, how.smoothing)) };
      return thinned(smooth, most);
    });
    this.how = { ...how, range };
    this.chart.setAttribute("aria-label", `${how.yTitle} over ${how.xTitle} of ${curves.length} tasks${curves.length <= 5 ? `: ${curves.map((curve) => curve.label).join(", ")}` : ""}.`);
    this.draw();
    this.drawLegend();
  }

  draw() {
    this.plot?.destroy();
    this.plot = null;
    fill(this.chart);
    this.width = Math.max(this.chart.clientWidth, 260);
    const visible = this.curves.filter((curve) => !this.hidden.has(curve.label) && curve.x.length);
    if (!visible.length) { this.chart.append(element("p", { class: "note" }, "No value of it has been measured yet.")); return; }
    const series = [{}], tables = [], bands = [], owners = [null];
    for (const curve of visible) {
      const columns = [curve.x, curve.y], stroke = colourOf(curve.place);
      series.push({ stroke, width: 1.7, dash: dashOf(curve.place), points: { show: curve.x.length < 30, size: 5 } });
      owners.push(curve);
      if (curve.low) {
        columns.push(curve.high, curve.low);
        bands.push({ series: [series.length, series.length + 1], fill: `${stroke}2e` });
        series.push({ stroke: "transparent", width: 0, points: { show: false } }, { stroke: "transparent", width: 0, points: { show: false } });
        owners.push(null, null);
      }
      tables.push(columns);
    }
    const axis = (label, size) => ({ stroke: themeColour("muted"), grid: { stroke: themeColour("grid"), width: 1 }, ticks: { stroke: themeColour("grid"), width: 1 }, label, labelSize: 22, size, labelFont: "12.5px sans-serif", font: "11px sans-serif", values: (plot, values) => values.map((value) => (value === null ? "" : showNumber(value))) });
    this.plot = new uPlot({
      width: this.width, height: HEIGHT, series, bands, legend: { show: false }, focus: { alpha: 0.25 },
      scales: { x: { time: false }, y: { distr: this.how.logarithmic ? 3 : 1, ...this.rangeOf() } },
      axes: [axis(this.how.xTitle, 48), axis(this.how.yTitle, 66)],
      cursor: { focus: { prox: 30 }, dataIdx: nearest, drag: { x: true, y: false } },
      hooks: { setCursor: [(plot) => this.hover(plot, owners)], setSeries: [(plot, number) => { this.focused = number; }], draw: [(plot) => this.drawMarks(plot)] },
    }, tables.length === 1 ? tables[0] : uPlot.join(tables), this.chart);
    this.chart.append(this.hint);
  }

  // A level is seen even where no curve comes near it.
  rangeOf() {
    const { level, range } = this.how;
    if (range) return { range };
    if (!level) return {};
    return { range: (plot, low, high) => { const bottom = Math.min(low ?? level.value, level.value), top = Math.max(high ?? level.value, level.value), margin = 0.06 * (top - bottom || 1); return [bottom - margin, top + margin]; } };
  }

  drawMarks(plot) {
    const { level, marks = [] } = this.how, { ctx: context, bbox: box } = plot, ratio = window.devicePixelRatio || 1;
    if (!level && !marks.length) return;
    context.save();
    context.beginPath(); context.rect(box.left, box.top, box.width, box.height); context.clip();
    if (level) {
      const at = plot.valToPos(level.value, "y", true);
      context.strokeStyle = context.fillStyle = themeColour("ink");
      context.lineWidth = 1.2 * ratio; context.setLineDash([6 * ratio, 4 * ratio]);
      context.beginPath(); context.moveTo(box.left, at); context.lineTo(box.left + box.width, at); context.stroke();
      context.setLineDash([]); context.font = `${12 * ratio}px sans-serif`; context.textAlign = "left"; context.textBaseline = "bottom";
      context.fillText(level.label, box.left + 8 * ratio, at - 3 * ratio);
    }
    for (const { x, y, place } of this.visibleMarks(marks)) {
      context.beginPath(); context.arc(plot.valToPos(x, "x", true), plot.valToPos(y, "y", true), 5 * ratio, 0, 2 * Math.PI);
      context.fillStyle = colourOf(place); context.fill();
      context.strokeStyle = themeColour("panel"); context.lineWidth = 1.5 * ratio; context.stroke();
    }
    context.restore();
  }

  visibleMarks(marks) { return marks.filter((mark) => !this.hidden.has(mark.label)); }

  hover(plot, owners) {
    const owner = owners[this.focused ?? 0], at = plot.cursor.idxs?.[this.focused];
    this.hint.hidden = !owner || at === null || at === undefined || plot.cursor.left < 0;
    if (this.hint.hidden) return;
    fill(this.hint, element("b", {}, owner.label), element("span", {}, `${showNumber(plot.data[this.focused][at])} at ${showNumber(plot.data[0][at])} ${this.how.xTitle}`));
    this.hint.style.left = `${Math.min(plot.cursor.left + 80, Math.max(this.width - 260, 0))}px`;
    this.hint.style.top = `${plot.cursor.top + 18}px`;
  }

  drawLegend() {
    const named = this.curves.slice(0, MOST_NAMED).map((curve) => {
      const key = element("i", { style: { "border-color": colourOf(curve.place), "border-top-style": dashOf(curve.place).length ? "dashed" : "solid" } });
      return element("button", { type: "button", "aria-pressed": String(!this.hidden.has(curve.label)), ondblclick: () => this.alone(curve.label), onclick: () => { if (!this.hidden.delete(curve.label)) this.hidden.add(curve.label); this.draw(); this.drawLegend(); } }, key, shorten(curve.label, 60));
    });
    fill(this.legend, this.curves.length > 1 ? named : null, this.curves.length > MOST_NAMED ? ` and ${this.curves.length - MOST_NAMED} more` : null);
  }

  alone(label) {
    this.hidden = new Set(this.curves.map((curve) => curve.label).filter((each) => each !== label));
    this.draw();
    this.drawLegend();
  }

  drawSvg(pen, width, height) {
    const { plot, how } = this;
    if (!plot) return;
    const { x, y } = plot.scales, box = { left: 74, top: 12, right: width - 12, bottom: height - 46 };
    const across = scale(x.min, x.max, box.left, box.right), up = scale(y.min, y.max, box.bottom, box.top, how.logarithmic);
    drawAxes(pen, box, { x: numberTicks(x.min, x.max, across, 7), y: numberTicks(y.min, y.max, up, 6, how.logarithmic), xTitle: how.xTitle, yTitle: how.yTitle });
    const inside = (value) => Math.min(Math.max(value, box.top), box.bottom);
    for (const curve of this.curves) {
      if (this.hidden.has(curve.label)) continue;
      const points = curve.x.map((at, place) => (curve.y[place] === null || at < x.min || at > x.max ? null : [across(at), inside(up(curve.y[place]))]));
      pen.line(points, { stroke: colourOf(curve.place), width: 1.7, dash: dashOf(curve.place) });
    }
    if (how.level) {
      pen.line([[box.left, up(how.level.value)], [box.right, up(how.level.value)]], { stroke: themeColour("ink"), width: 1.2, dash: [6, 4] });
      pen.text(box.left + 8, up(how.level.value) - 9, how.level.label, { fill: themeColour("ink"), size: 12 });
    }
    for (const mark of this.visibleMarks(how.marks ?? [])) pen.circle(across(mark.x), up(mark.y), 5, { fill: colourOf(mark.place), stroke: themeColour("panel") });
  }

  rows() {
    const head = ["curve", this.how.xTitle, this.how.yTitle];
    return [head, ...this.curves.filter((curve) => !this.hidden.has(curve.label)).flatMap((curve) => curve.x.map((at, place) => [curve.label, at, curve.y[place]]))];
  }
}

// The nearest place at which a curve has a value: curves that were measured at other moments have gaps there.
function nearest(plot, number, at) {
  const values = plot.data[number];
  if (values[at] !== null && values[at] !== undefined) return at;
  for (let away = 1; away < 400; away += 1) for (const place of [at - away, at + away]) if (values[place] !== null && values[place] !== undefined) return place;
  return at;
}

/** What to divide seconds by for an axis this long, and what to call it. */
export function timeUnit(seconds) {
  if (seconds < 240) return [1, "seconds"];
  return seconds < 4 * 3600 ? [60, "minutes"] : [3600, "hours"];
}
