// A race: the curves of all runs against time, where each crossed the target, the figures, and where the time went.
import { element, fill, note, plainTable, showNumber, showSeconds } from "./text.js";
import { box, choice } from "./controls.js";
import { CurvesChart, timeUnit } from "./curves.js";
import { colourOf, onTheme } from "./palette.js";
import { list, section } from "./parts.js";

export function raceView(body, frozen) {
  const { race, title } = frozen, rest = element("div", {}), panel = section("Curves");
  const clock = choice("clock", "Clock", Object.keys(race.clocks).map((name) => [name, name]), () => draw(), race.clock);
  const over = choice("over", "over", [["seconds", "time"], ["steps", "steps"]], () => draw());
  const bands = box("bands", "seeds as bands", () => draw());
  const controls = element("div", { class: "controls" }, clock.node, over.node, bands.node), about = note("");
  panel.append(controls);
  const chart = new CurvesChart(panel, "race");
  controls.append(chart.downloads);
  panel.append(about);

  const main = element("main", { id: "main" }, panel, rest);
  body.prepend(element("header", {}, element("div", { class: "bar" }, element("span", { class: "brand" }, "Dovetail race")), element("h1", {}, title), element("p", { class: "about" }, `to ${race.target}`)), main);
  document.title = `${title} · Dovetail`;

  const everyRun = () => race.contestants.flatMap((contestant, place) => contestant.runs.map((run) => ({ ...run, place, contestant: contestant.name })));

  function drawCurves() {
    const runs = everyRun(), axis = over.value, by = clock.value;
    const along = (run) => (axis === "steps" ? run.steps : run.seconds[by]), crossed = (run) => (axis === "steps" ? run.crossing_step : run.crossing?.[by]);
    const longest = Math.max(0, ...runs.map((run) => along(run)[along(run).length - 1] ?? 0));
    const [divisor, unit] = axis === "steps" ? [1, "steps"] : timeUnit(longest);
    const shown = runs.map((run) => ({ label: run.name, group: run.contestant, place: run.place, steps: run.steps, x: along(run).map((value) => value / divisor), y: run.values }));
    const marks = runs.filter((run) => typeof crossed(run) === "number").map((run) => ({ x: crossed(run) / divisor, y: race.level, place: run.place, label: run.name }));
    chart.show(shown, { xTitle: axis === "steps" ? unit : `${unit} by the clock ${by}`, yTitle: race.metric, logarithmic: false, smoothing: 0, bands: bands.value, robust: false, level: { value: race.level, label: race.target }, marks });
    about.textContent = `The line is the target; a circle is where a straight line between a run's last miss and its first hit crosses it. ${race.clocks[by]}.`;
  }

  function figures() {
    const by = clock.value, other = Object.keys(race.clocks).find((name) => name !== by), priced = race.contestants.some((each) => each.spend !== null);
    const heads = [["Contestant", "prose"], ["Arrived", "short"], ["Seconds to target", "number"], ["Interpolated", "number"], ["Seen late by at most", "number"], [`By ${other}`, "number"], ["Steps", "number"], ["Seconds a step", "number"], ...(priced ? [["Spend", "number"]] : [])];
    const rows = race.contestants.map((each, place) => [named(each.name, place), each.arrived, each.time[by], each.interpolated[by], showSeconds(each.error[by]), each.time[other], each.steps, each.step, ...(priced ? [each.spend ?? ""] : [])]);
    return section("Figures", plainTable("Figures", heads, rows), note("Olympic means over the seeds, without the fastest and the slowest run, with 95% intervals by bootstrap. A run that never arrives counts as infinite."));
  }

  function phases() {
    const heads = [["Contestant", ""], ...race.phases.map(({ name }) => [name, "number"])];
    const rows = race.contestants.map((each, place) => [named(each.name, place), ...race.phases.map(({ name }) => (each.phases[name] ? showSeconds(each.phases[name]) : "–"))]);
    return section("Where the time went", plainTable("Phases", heads, rows), list(race.phases.map(({ name, means }) => `${name}: ${means}`)));
  }

  function runs() {
    const by = clock.value, heads = [["Run", ""], ["Seconds", "number"], ["Interpolated", "number"], ["Steps", "number"], ["Seconds a step", "number"], ["Ran as", ""]];
    const rows = everyRun().map((run) => [named(run.name, run.place), run.time ? showNumber(run.time[by]) : "never", run.crossing ? showNumber(run.crossing[by]) : "", showNumber(run.ended), showNumber(run.step), run.ways || run.reason]);
    return section("Runs", plainTable("Runs", heads, rows));
  }

  function draw() {
    drawCurves();
    const compared = race.sentences.length ? section("Compared", list(race.sentences.map((pair) => pair.join(" ")))) : null;
    const known = race.notes.length ? section("Before you believe it", list(race.notes)) : null;
    fill(rest, figures(), compared, known, phases(), runs());
  }

  draw();
  onTheme(draw);
  addEventListener("resize", drawCurves);
}

const named = (name, place) => element("span", { class: "key" }, element("i", { style: { background: colourOf(place), "border-color": colourOf(place) } }), name);
