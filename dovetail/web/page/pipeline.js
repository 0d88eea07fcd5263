// Pipelines: who computes which microbatch when, as it was planned and as it was measured, on one scale.
import { element, fill, note, showSeconds, showShare } from "./text.js";
import { state } from "./state.js";
import { colourOf, textOn, themeColour } from "./palette.js";
import { timeTicks } from "./scales.js";
import { PenChart, section } from "./parts.js";

const LANE = 30, LEFT = 66;
const LOOKS = { forward: ["F", 0], backward: ["B", 1], inputs: ["I", 3], weights: ["W", 4], update: ["U", 6] };

export function pipelineView(container) {
  const found = element("div", {});
  container.append(found);
  let plans = 0;
  const charts = [];

  async function load() {
    plans = state.data.plans_made;
    const pipelines = await state.ask("pipelines").catch((error) => ({ error: error.message }));
    charts.length = 0;
    fill(found);
    if (pipelines.error || !pipelines.length) { found.append(section("Pipelines", note(pipelines.error ?? "No task was planned as a pipeline, or has run as one."))); return; }
    for (const each of pipelines) found.append(drawing(each));
    found.append(note("Letters are forward (F) and backward (B), or the gradients of inputs (I) and weights (W) apart, with their microbatch, and updates (U); what is empty is idle time."));
    charts.forEach((chart) => chart.draw());
  }

  function drawing(pipeline) {
    const panel = section(`${pipeline.task}: ${pipeline.timetable} on ${pipeline.devices.join(", ")}`);
    for (const [title, timetable] of [["planned", pipeline.planned], [`measured in step ${pipeline.step}`, pipeline.measured]]) {
      if (!timetable) continue;
      const heading = element("h3", {}, `${title}: ${showSeconds(timetable.seconds)}, ${showShare(timetable.idle)} idle`);
      panel.append(heading);
      const chart = timetableChart(panel, `timetable-${title.split(" ")[0]}`, timetable, pipeline.seconds);
      heading.append(" ", chart.downloads);
      charts.push(chart);
    }
    return panel;
  }

  load();
  return { update() { if (state.data.plans_made !== plans) load(); }, resize: () => charts.forEach((chart) => chart.draw()) };
}

function timetableChart(container, name, timetable, seconds) {
  const height = timetable.ranks.length * LANE + 26;
  const draw = (pen, width) => {
    const place = (at) => LEFT + (at / seconds) * (width - LEFT - 8), bottom = timetable.ranks.length * LANE;
    for (const [at, text] of timeTicks(0, seconds, Math.floor(width / 120))) {
      pen.line([[place(at), 0], [place(at), bottom]], { stroke: themeColour("grid") });
      pen.text(place(at), bottom + 13, text, { fill: themeColour("muted"), size: 11, align: "center" });
    }
    timetable.ranks.forEach((rank, number) => {
      pen.text(LEFT - 8, (number + 0.5) * LANE, `rank ${number}`, { fill: themeColour("ink"), align: "right" });
      for (const [operation, , microbatch, start, end] of rank) {
        const [letter, colour] = LOOKS[operation] ?? ["?", 6], x = place(start), wide = Math.max(place(end) - x, 1);
        pen.rect(x, number * LANE + 3, wide, LANE - 6, { fill: colourOf(colour), stroke: wide > 6 ? themeColour("panel") : undefined });
        if (wide > 20) pen.text(x + wide / 2, (number + 0.5) * LANE, operation === "update" ? letter : `${letter}${microbatch}`, { fill: textOn(colour), size: 11, align: "center" });
      }
    });
  };
  const rows = () => [["rank", "operation", "stage", "microbatch", "start", "end"], ...timetable.ranks.flatMap((rank, number) => rank.map((action) => [number, ...action]))];
  return new PenChart(container, name, { label: `Timetable of ${timetable.ranks.length} ranks over ${showSeconds(seconds)}.`, height, draw, rows });
}
