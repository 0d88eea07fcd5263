// Tasks side by side: curves over each other, parameters against metrics, what differs, who is best.
import { distinctWords, element, fill, note, plainTable, plural, showNumber, showSeconds } from "./text.js";
import { state } from "./state.js";
import { here, keepChosen } from "./route.js";
import { box, button, choice, slider } from "./controls.js";
import { CurvesChart, timeUnit } from "./curves.js";
import { parallelChart } from "./parallel.js";
import { scatterChart } from "./scatter.js";
import { givenOf, metricNames, sorted, variedParameters } from "./tasks.js";
import { placesOf } from "./bars.js";
import { section, taskLink } from "./parts.js";

const FIRST = 20, MOST = 200, MOST_RANKED = 50, REFRESH_MS = 3000;
const TITLES = { steps: (unit) => unit, trained: (unit) => `${unit} of training`, wall: (unit) => `${unit} since its start`, at: (unit) => `${unit} since the first` };
const MINIMISED = ["loss", "error", "perplexity"], MAXIMISED = ["acc", "f1", "auc", "precision", "recall", "bleu", "rouge", "score", "reward", "return", "iou", "psnr"];
// As whole words alone: "map" also begins "mape".
const MAXIMISED_WORDS = ["r2", "map", "ndcg", "mrr", "dice", "ssim", "mcc"], MINIMISED_WORDS = ["mse", "rmse", "mae", "mape", "rmsle", "nll", "ppl", "bpb", "bpc", "bpd", "wer", "cer", "fid"];

/** Whether more of a metric is better, as far as its name, or a task's target, tells. */
export function isMaximised(metric) {
  const target = state.rows.find((row) => row.target?.startsWith(`${metric} `))?.target ?? "";
  if (target.includes("≥")) return true;
  const lower = metric.toLowerCase(), words = new Set(lower.split(/[^a-z0-9]+/));
  const tells = (parts, whole) => parts.some((word) => lower.includes(word)) || whole.some((word) => words.has(word));
  return !tells(MINIMISED, MINIMISED_WORDS) && tells(MAXIMISED, MAXIMISED_WORDS);
}

const withoutSeed = (name) => name.split(" ").filter((word) => !word.startsWith("seed=") && !word.startsWith("#")).join(" ") || name;

export function compareView(container) {
  const present = () => state.rows.filter((row) => !row.former && Object.keys(row.metrics).length);
  if (!present().length) {
    container.append(section("Compare", note("No metric has been measured yet.")));
    return { update: () => { if (present().length) dispatchEvent(new HashChangeEvent("hashchange")); } };
  }
  const metric = choice("metric", "Metric", metricNames().map((name) => [name, name]), () => { load(); drawRest(); });
  const over = choice("over", "over", [["steps", "steps"], ["trained", "training time"], ["wall", "time since its start"], ["at", "wall clock"]], () => draw());
  const smoothing = slider("smoothing", "Smoothing", { least: 0, most: 0.98, step: 0.02, fallback: 0 }, () => draw());
  const logarithmic = box("log", "logarithmic", () => draw()), bands = box("bands", "seeds as bands", () => draw()), robust = box("robust", "without runaways", () => draw(), true);
  const everything = button("Best 20 of all", () => { keepChosen({ tasks: "" }); load(); drawRest(); });
  const panel = section("Curves"), about = note(""), rest = element("div", {});
  const controls = element("div", { class: "controls" }, metric.node, over.node, smoothing.node, logarithmic.node, bands.node, robust.node, everything);
  panel.append(controls);
  const chart = new CurvesChart(panel, "curves");
  controls.append(chart.downloads);
  panel.append(about);
  container.append(panel, rest);
  let curves = {}, ids = [], loadedAt = 0;

  function wantedIds() {
    const given = (here().chosen.get("tasks") ?? "").split(",").filter((id) => state.tasks.has(id));
    if (given.length) return given.slice(0, MOST);
    const by = `metric:${metric.value}`;
    return sorted(present().filter((row) => row.metrics[metric.value]), isMaximised(metric.value) ? `-${by}` : by).slice(0, FIRST).map((row) => row.id);
  }

  async function load() {
    ids = wantedIds();
    loadedAt = performance.now();
    const name = metric.value;
    const found = await state.ask("curves", { metric: name, task: ids }).catch((error) => { about.textContent = error.message; return null; });
    if (found && name === metric.value) { curves = found; draw(); }
  }

  function labels() {
    const rows = ids.map((id) => state.tasks.get(id)), short = distinctWords(rows.map((row) => row.name));
    return new Map(rows.map((row, place) => [row.id, short[place]]));
  }

  function groupNames() {
    const members = new Map();
    for (const id of ids) {
      const row = state.tasks.get(id), { seed, ...given } = row.given;
      const key = JSON.stringify([withoutSeed(row.name), given]);
      members.set(key, [...(members.get(key) ?? []), row]);
    }
    const names = [...members.values()].map((rows) => withoutSeed(rows[0].name)), short = new Set(names).size === names.length ? distinctWords(names) : names;
    return new Map([...members.values()].flatMap((rows, place) => rows.map((row) => [row.id, short[place]])));
  }

  function draw() {
    const places = placesOf(), named = labels(), groups = groupNames(), axis = over.value, first = {};
    bands.node.hidden = new Set(groups.values()).size === groups.size;
    const found = ids.filter((id) => curves[id]?.[metric.value]).map((id) => ({ id, ...curves[id][metric.value] }));
    const origin = axis === "at" ? Math.min(...found.map((curve) => curve.at[0] ?? Infinity)) : 0;
    const longest = Math.max(0, ...found.map((curve) => (curve[axis][curve[axis].length - 1] ?? 0) - origin));
    const [divisor, unit] = axis === "steps" ? [1, "steps"] : timeUnit(longest);
    const shown = found.map((curve) => ({ label: named.get(curve.id), group: groups.get(curve.id), place: ids.length <= 14 ? ids.indexOf(curve.id) : places.get(curve.id) ?? 0, steps: curve.steps, x: curve[axis].map((value) => (value - origin) / divisor), y: curve.values }));
    first.count = shown.length;
    chart.show(shown, { xTitle: TITLES[axis](unit), yTitle: metric.value, logarithmic: logarithmic.value, smoothing: smoothing.value, bands: bands.value && !bands.node.hidden, robust: robust.value });
    robust.node.hidden = !chart.how.range && robust.value;
    const chosen = here().chosen.get("tasks");
    about.textContent = `${chosen ? "The chosen" : "The best"} ${plural(first.count, "task")} of ${present().length}. Drag over the chart to zoom, double-click to see all; press a name to hide its curve, double-click it to see it alone.`;
    everything.hidden = !chosen;
  }

  function drawRest() {
    const rows = present().filter((row) => typeof row.metrics[metric.value]?.[1] === "number" || typeof row.metrics[metric.value]?.[0] === "number");
    const chosen = ids.map((id) => state.tasks.get(id)).filter(Boolean);
    fill(rest);
    if (rows.length > 1 && variedParameters(rows).length) { parallelChart(rest, rows, metric.value, isMaximised(metric.value)); scatterChart(rest, rows, metric.value); }
    rest.append(...[ranking(rows), targets(), chosen.length > 1 && chosen.length <= 30 ? differences(chosen) : null].filter(Boolean));
  }

  function ranking(rows) {
    if (rows.length < 2) return null;
    const best = sorted(rows, `${isMaximised(metric.value) ? "-" : ""}metric:${metric.value}`), varied = variedParameters(rows), metrics = [metric.value, ...metricNames(rows).filter((name) => name !== metric.value)].slice(0, 3);
    const heads = [["Rank", "number"], ["Task", ""], ...metrics.map((name) => [`best ${name}`, "number"]), ...varied.map((name) => [name, "number"])];
    const lines = best.slice(0, MOST_RANKED).map((row, place) => [String(place + 1), taskLink(row.id), ...metrics.map((name) => showNumber(row.metrics[name]?.[1] ?? row.metrics[name]?.[0])), ...varied.map((name) => showNumber(givenOf(row, name)))]);
    return section("Ranking", plainTable("Ranking", heads, lines), note(`By the best value that ${metric.value} had, ${isMaximised(metric.value) ? "largest" : "smallest"} first.${best.length > MOST_RANKED ? ` The best ${MOST_RANKED} of ${best.length} are listed.` : ""}`));
  }

  // When each target was first reached, which is asked for once the rest is there.
  function targets() {
    if (!state.rows.some((row) => row.target && !row.former)) return null;
    const panel = section("Time to target"), heads = [["Task", ""], ["Target", "short"], ["Reached with", "number"], ["Steps", "number"], ["Training time", "number"], ["Since its start", "number"]];
    state.ask("targets").then((found) => {
      const lines = found.slice(0, MOST_RANKED).map(({ task, target, reached }) => [taskLink(task), target, ...(reached ? [showNumber(reached.value), showNumber(reached.step), showSeconds(reached.trained), showSeconds(reached.wall)] : ["not reached", "", "", ""])]);
      panel.append(plainTable("Time to target", heads, lines));
    }).catch((error) => panel.append(note(error.message)));
    return panel;
  }

  function differences(rows) {
    const names = [...new Set(rows.flatMap((row) => Object.keys(row.given)))].filter((name) => new Set(rows.map((row) => JSON.stringify(row.given[name] ?? null))).size > 1);
    const metrics = metricNames(rows), lines = [
      ...names.map((name) => [name, ...rows.map((row) => showNumber(row.given[name]))]),
      ...metrics.map((name) => [`best ${name}`, ...rows.map((row) => showNumber(row.metrics[name]?.[1] ?? row.metrics[name]?.[0]))]),
      ["steps", ...rows.map((row) => showNumber(row.step))], ["status", ...rows.map((row) => row.status)],
    ];
    const shared = Object.entries(rows[0].given).filter(([name]) => !names.includes(name) && rows.every((row) => name in row.given));
    return section("Differences", plainTable("Differences between the chosen tasks", [["", "short"], ...rows.map((row) => [row.name, "number"])], lines), shared.length ? note(`The same for all: ${shared.map(([name, value]) => `${name}=${value}`).join("   ")}`) : null);
  }

  load().then(drawRest);
  return {
    update(change) {
      const known = metricNames();
      if (change.anew || known.length !== container.querySelectorAll("select[name=metric] option").length) metric.set(known.map((name) => [name, name]), metric.value);
      if (performance.now() - loadedAt > REFRESH_MS && (change.anew || ids.some((id) => change.tasks.has(id)))) load().then(drawRest);
    },
    resize: () => { chart.draw(); drawRest(); },
  };
}
