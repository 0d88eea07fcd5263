// One task: its curves, what happened to it, how it ran and how else it could have, what it printed, what it is made of.
import { chip, element, fill, note, plainTable, showBytes, showMoment, showNumber, showSeconds } from "./text.js";
import { state } from "./state.js";
import { addressOf, here } from "./route.js";
import { box, choice, slider } from "./controls.js";
import { csvOf, download } from "./pen.js";
import { CurvesChart, timeUnit } from "./curves.js";
import { placesOf, SPAN } from "./bars.js";
import { incident, folded, section, storeWord } from "./parts.js";
import { metricNames, trainedSeconds } from "./tasks.js";
import { describePriority, taskActions, whyButton } from "./actions.js";

const REFRESH_MS = 3000;

export function taskView(container) {
  const id = here().chosen.get("id"), row = () => state.tasks.get(id);
  if (!row()) { container.append(section("Task", note("There is no such task in this store."))); return { remakes: true }; }
  const head = element("section", {}), rest = element("div", {}), panel = section("Curves");
  const metric = choice("metric", "Metric", [["", "all"], ...metricNames([row()]).map((name) => [name, name])], () => drawCurves());
  const over = choice("over", "over", [["steps", "steps"], ["trained", "training time"], ["wall", "time since its start"]], () => drawCurves());
  const smoothing = slider("smoothing", "Smoothing", { least: 0, most: 0.98, step: 0.02, fallback: 0 }, () => drawCurves()), logarithmic = box("log", "logarithmic", () => drawCurves());
  const controls = element("div", { class: "controls" }, metric.node, over.node, smoothing.node, logarithmic.node);
  panel.append(controls);
  const chart = new CurvesChart(panel, "curves");
  controls.append(chart.downloads);
  container.append(head, panel, rest);
  let curves = {}, detail = null, loadedAt = 0;

  async function load() {
    loadedAt = performance.now();
    const [found, about] = await Promise.all([state.ask("curves", { task: id }).catch(() => ({})), state.ask("task", { id }).catch((error) => ({ error: error.message }))]);
    curves = found[id] ?? {};
    detail = about;
    metric.set([["", "all"], ...metricNames([row()]).map((name) => [name, name])], metric.value);
    drawHead(); drawCurves(); drawRest();
  }

  function drawHead() {
    const task = row(), last = task.spans[task.spans.length - 1], mayAct = state.mayAct;
    const figures = [
      ["Status", chip(task.status)], ["Steps", `${showNumber(task.step)}${task.last_step ? ` of ${showNumber(task.last_step)}` : ""}${task.saved ? `, saved at ${showNumber(task.saved)}` : ""}`],
      ["Trained", `${showSeconds(trainedSeconds(task))} in ${task.attempts ?? 0} attempt${task.attempts === 1 ? "" : "s"}${task.former_attempts ? `, ${task.former_attempts} before it began anew` : ""}`],
      last && ["Last ran", `${last[SPAN.technique] || "technique not known"} on ${last[SPAN.devices].join(", ")}, predicted ${showSeconds(last[SPAN.predicted])}`],
      ["Stops", detail?.stop ?? task.target ?? ""], ["Priority", describePriority(task)], task.deadline && ["Deadline", showMoment(task.deadline)], task.family && ["Family", task.family],
      task.reason && ["Reason", task.reason], ...Object.entries(task.metrics).map(([name, [value, best]]) => [name, best === null ? showNumber(value) : `${showNumber(value)}, best ${showNumber(best)}`]),
    ].filter(Boolean);
    fill(head, element("h2", {}, task.former ? `${task.name} (former)` : task.name), mayAct ? element("div", { class: "controls" }, taskActions(task)) : null,
      element("dl", { class: "figures" }, figures.flatMap(([name, value]) => [element("dt", {}, name), element("dd", {}, value)])),
      element("p", { class: "note" }, element("a", { href: addressOf("compare", { tasks: alike(task).join(","), ...storeWord() }) }, "Compare with the others of its family")), waits(task));
  }

  const alike = (task) => state.rows.filter((other) => other.family === task.family && !other.former).slice(0, 60).map((other) => other.id);

  function waits(task) {
    if (!detail?.waits) return null;
    return element("div", {}, element("h3", {}, "What it waits for"), note(detail.waits), state.mayAct && task.status === "pending" ? whyButton(task) : null);
  }

  function drawCurves() {
    const names = metric.value ? [metric.value] : Object.keys(curves), axis = over.value;
    const found = names.filter((name) => curves[name]), longest = Math.max(0, ...found.map((name) => curves[name][axis].at(-1) ?? 0)), [divisor, unit] = axis === "steps" ? [1, "steps"] : timeUnit(longest);
    chart.show(found.map((name, place) => ({ label: name, group: name, place: metric.value ? placesOf().get(id) ?? 0 : place, steps: curves[name].steps, x: curves[name][axis].map((value) => value / divisor), y: curves[name].values })),
      { xTitle: unit, yTitle: metric.value || "value", logarithmic: logarithmic.value, smoothing: smoothing.value, bands: false, robust: false });
  }

  function drawRest() {
    if (!detail || detail.error) { fill(rest, section("More", note(detail?.error ?? "…"))); return; }
    const open = [...rest.querySelectorAll("details")].map((each) => each.open);
    fill(rest, [options(), attempts(), log(), checkpoints(), parameters(), history()]);
    rest.querySelectorAll("details").forEach((each, place) => { if (open[place]) each.open = true; });
  }

  function options() {
    if (!detail.options.length && !detail.rejected.length) return section("How it could run", note("Nothing has been measured of it yet."));
    const chosen = detail.options.find((option) => option.chosen), compared = (option) => (!chosen || option === chosen ? "" : `${(option.seconds / chosen.seconds).toFixed(2)} ×`);
    const rows = detail.options.map((option) => [option.chosen ? element("b", {}, "✓ last ran so") : "instead", `${option.technique}${option.gang > 1 ? `, one of ${option.gang}` : ""}`, `${option.count} × ${option.kind}`, showSeconds(option.step_seconds), showSeconds(option.seconds), compared(option), showSeconds(option.device_seconds), option.spend ? showNumber(option.spend) : "", showBytes(option.device_bytes || option.host_bytes), option.measured ? "measured" : "predicted"]);
    const heads = [["", "short"], ["Technique", "short"], ["Devices", "short"], ["A step", "number"], ["All its steps", "number"], ["Instead", "number"], ["Device time", "number"], ["Spend", "number"], ["Memory", "number"], ["From", ""]];
    const no = detail.rejected.map((each) => [each.technique, `${each.count} × ${each.kind}`, showBytes(each.needed), showBytes(each.free), each.reason]);
    return section("How it could run, and what that would change", rows.length ? plainTable("Options", heads, rows) : null, note("What it would take alone, from its first step to its last; which is best depends on the other tasks as well."),
      no.length ? element("h3", {}, "Rejected") : null, no.length ? plainTable("Rejected options", [["Technique", ""], ["Devices", "short"], ["Needs", "number"], ["Free", "number"], ["Reason", "prose"]], no) : null);
  }

  function attempts() {
    const spans = row().spans;
    if (!spans.length) return null;
    const rows = spans.map((span, place) => { const end = span[SPAN.end] ?? spans[place + 1]?.[SPAN.start] ?? state.now, ran = end - span[SPAN.start]; return [showMoment(span[SPAN.start]), span[SPAN.devices].join(", "), span[SPAN.technique], `${showNumber(span[SPAN.from])} to ${showNumber(span[SPAN.to])} of ${showNumber(span[SPAN.until])}`, showSeconds(span[SPAN.predicted]), showSeconds(ran), span[SPAN.to] >= span[SPAN.until] && span[SPAN.predicted] ? (ran / span[SPAN.predicted]).toFixed(2) : ""]; });
    return section("Placements", plainTable("Placements", [["Start", "short"], ["Devices", ""], ["Technique", ""], ["Steps", "number"], ["Predicted", "number"], ["Measured", "number"], ["Ratio", "number"]], rows));
  }

  function log() {
    if (!detail.log) return null;
    return section("End of its log", element("pre", { tabindex: "0" }, detail.log), note(`All of it: dovetail logs '${row().name}'`));
  }

  function checkpoints() {
    if (!detail.checkpoints.length) return null;
    const kept = (each) => (each.kept === null ? "elsewhere" : each.kept ? "there" : "replaced");
    return section("Checkpoints", plainTable("Checkpoints", [["Step", "number"], ["Saved", "short"], ["Size", "number"], ["", ""]], detail.checkpoints.slice(0, 40).map((each) => [showNumber(each.step), showMoment(each.at), showBytes(each.bytes), `${kept(each)}${each.best ? ", the best" : ""}`])), note(`The trained model out: dovetail export '${row().name}'`));
  }

  function parameters() {
    const rows = Object.entries(detail.parameters).map(([name, value]) => [name, String(value)]);
    const save = (name, type, content) => () => download(`${row().name}.${name}`, type, content());
    const exports = [
      element("button", { type: "button", class: "quiet", onclick: save("json", "application/json", () => JSON.stringify({ ...row(), said: undefined, ...detail, curves }, null, 1)) }, "All of it as JSON"),
      element("button", { type: "button", class: "quiet", onclick: save("csv", "text/csv", () => csvOf([["metric", "step", "value", "at"], ...Object.entries(curves).flatMap(([name, curve]) => curve.steps.map((step, place) => [name, step, curve.values[place], curve.at[place]]))])) }, "Curves as CSV"),
    ];
    return section("Program and parameters", element("p", {}, detail.program), rows.length ? plainTable("Parameters", [["Parameter", ""], ["Value", ""]], rows) : note("It has no parameters."), element("div", { class: "controls" }, exports), detail.source ? folded("Its code, as the file has it now", element("pre", { tabindex: "0" }, detail.source)) : null);
  }

  function history() {
    const items = [...detail.events].reverse().map(([at, kind, attempt, text, words]) => incident(kind, { at, attempt: 0, text: `${attempt ? `attempt ${attempt}` : ""}${attempt && text ? ": " : ""}${text}`, log: words }));
    return section("What happened", folded(`${detail.events_total} events`, element("ol", { class: "list" }, items)));
  }

  drawHead();
  load();
  return {
    update(change) { if (!row()) return; if (change.tasks.has(id) || change.anew) { drawHead(); if (performance.now() - loadedAt > REFRESH_MS) load(); } },
    resize: () => chart.draw(),
    remakes: false,
  };
}
