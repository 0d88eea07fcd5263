// A metric against a parameter, and how much of the metric's spread each parameter goes with.
import { element, plainTable, showNumber, showShare } from "./text.js";
import { colourOf, themeColour } from "./palette.js";
import { drawAxes, numberTicks, scale, spansTens } from "./scales.js";
import { choice } from "./controls.js";
import { givenOf, variedParameters } from "./tasks.js";
import { PenChart, section } from "./parts.js";

const HEIGHT = 360, BINS = 5, MOST_VALUES = 8;

/**
 * The share of a metric's variance that goes with a parameter: epsilon squared, which counts the groups against it, so that
 * a parameter with a value of its own for every task explains nothing. Numbers of many values are cut into five equal parts.
 */
export function importance(values, outcomes) {
  const groups = new Map(), keys = groupsOf(values), count = outcomes.length;
  keys.forEach((key, place) => { if (!groups.has(key)) groups.set(key, []); groups.get(key).push(outcomes[place]); });
  const mean = (list) => list.reduce((sum, each) => sum + each, 0) / list.length, middle = mean(outcomes);
  const total = outcomes.reduce((sum, each) => sum + (each - middle) ** 2, 0);
  const inside = [...groups.values()].reduce((sum, members) => { const own = mean(members); return sum + members.reduce((part, each) => part + (each - own) ** 2, 0); }, 0);
  if (!total || groups.size < 2 || count <= groups.size) return 0;
  return Math.max(0, 1 - ((inside / total) * (count - 1)) / (count - groups.size));
}

function groupsOf(values) {
  const distinct = new Set(values);
  if (distinct.size <= MOST_VALUES || !values.every((value) => typeof value === "number")) return values.map(String);
  const order = [...values].sort((a, b) => a - b), edges = Array.from({ length: BINS - 1 }, (_, number) => order[Math.floor(((number + 1) * order.length) / BINS)]);
  return values.map((value) => String(edges.filter((edge) => value >= edge).length));
}

export function scatterChart(container, rows, metric) {
  const panel = section("One parameter against the metric"), names = variedParameters(rows), came = rows.map((row) => row.metrics[metric][1] ?? row.metrics[metric][0]);
  const weights = names.map((name) => [name, importance(rows.map((row) => givenOf(row, name) ?? null), came)]).sort(([, a], [, b]) => b - a);
  const parameter = choice("parameter", "Parameter", names.map((name) => [name, name]), () => chart.draw(), weights[0]?.[0]);
  let placed = [];
  const chart = new PenChart(element("div", {}), "scatter", { label: `${metric} against one parameter of ${rows.length} tasks.`, height: HEIGHT, draw, hover, rows: () => [["task", parameter.value, metric], ...rows.map((row, number) => [row.name, givenOf(row, parameter.value), came[number]])] });
  const right = element("div", {}, element("h3", {}, "What goes with it"), plainTable(`Share of the spread of ${metric}`, [["Parameter", ""], ["Share", "number"]], weights.map(([name, share]) => [name, showShare(share)])), element("p", { class: "note" }, "The share of the metric's spread between tasks that goes with each parameter alone; it is no cause by itself."));
  panel.append(element("div", { class: "controls" }, parameter.node, chart.downloads), element("div", { class: "pair" }, element("div", {}, chart.node), right));
  container.append(panel);
  chart.draw();

  function draw(pen, width, height) {
    const name = parameter.value, pairs = rows.map((row, number) => [givenOf(row, name) ?? null, came[number], row]).filter(([value]) => value !== null);
    const box = { left: 68, top: 10, right: width - 14, bottom: height - 42 }, values = pairs.map(([value]) => value), outcomes = pairs.map(([, value]) => value);
    const numbers = values.every((value) => typeof value === "number" && Number.isFinite(value)), tens = numbers && spansTens(values), high = spansTens(outcomes);
    const words = [...new Set(values.map(String))].sort((a, b) => a.localeCompare(b, undefined, { numeric: true }));
    const ends = (list, log) => { const low = list.reduce((a, b) => Math.min(a, b), Infinity), top = list.reduce((a, b) => Math.max(a, b), -Infinity), margin = (top - low || Math.abs(top) || 1) * 0.05; return log ? [low / 1.15, top * 1.15] : [low - margin, top + margin]; };
    const x = numbers ? scale(...ends(values, tens), box.left, box.right, tens) : scale(-0.5, words.length - 0.5, box.left, box.right), y = scale(...ends(outcomes, high), box.bottom, box.top, high);
    const across = numbers ? (new Set(values).size <= MOST_VALUES ? [...new Set(values)].map((value) => [x(value), showNumber(value)]) : numberTicks(...ends(values, tens), x, 6, tens)) : words.map((word, number) => [x(number), word]);
    drawAxes(pen, box, { x: across, y: numberTicks(...ends(outcomes, high), y, 6, high), xTitle: name, yTitle: metric });
    placed = pairs.map(([value, outcome, row]) => ({ x: x(numbers ? value : words.indexOf(String(value))), y: y(outcome), row, value, outcome }));
    for (const dot of placed) pen.circle(dot.x, dot.y, 4.5, { fill: colourOf(0), stroke: themeColour("panel"), alpha: 0.75 });
  }

  function hover(x, y) {
    const near = placed.find((dot) => Math.hypot(dot.x - x, dot.y - y) < 7);
    return near ? [near.row.name, `${metric} ${showNumber(near.outcome)}`, `${parameter.value} ${showNumber(near.value)}`] : null;
  }
}

