// Predicted against measured: every placement that did what it was predicted for, one colour and sign a technique.
import { element, fill, note, showNumber, showSeconds } from "./text.js";
import { state } from "./state.js";
import { colourOf, themeColour } from "./palette.js";
import { drawAxes, scale, ticks } from "./scales.js";
import { measuredBars } from "./bars.js";
import { PenChart } from "./parts.js";

const HEIGHT = 380, MOST_DOTS = 5000;

/** Draw predictions against measurements into a section. */
export function predictionChart(container) {
  const bars = measuredBars().filter((bar) => bar.outcome === "completed" && bar.predicted > 0 && bar.end > bar.start);
  const { comparison } = state.data;
  const aside = [[comparison.interrupted, "that ended before their last step"], [comparison.running, "still running"], [comparison.unpredicted, "without a prediction"]]
    .filter(([count]) => count).map(([count, why]) => `${showNumber(count)} ${why}`);
  const words = aside.length ? note(`Not compared: ${aside.join(", ")}.`) : null;
  fill(container, element("h2", {}, "Prediction and measurement"));
  if (!bars.length) { container.append(note("Nothing to compare yet."), ...(words ? [words] : [])); return; }
  const dots = bars.slice(-MOST_DOTS), names = [...new Set(dots.map((bar) => bar.technique || "unknown"))].sort();
  const seconds = dots.flatMap((bar) => [bar.predicted, bar.end - bar.start]);
  let low = Infinity, high = 0;
  for (const each of seconds) { if (each < low) low = each; if (each > high) high = each; }
  const ends = [Math.max(low, 1e-6) / 1.15, high * 1.15];
  let placed = [];
  const chart = new PenChart(container, "predictions", {
    label: `Measured against predicted seconds of ${dots.length} placements; the median of measured over predicted is ${showNumber(comparison.ratio)}.`,
    height: HEIGHT, draw, hover,
    rows: () => [["task", "technique", "predicted seconds", "measured seconds"], ...dots.map((bar) => [state.name(bar.ids[0]), bar.technique, bar.predicted, bar.end - bar.start])],
  });
  container.firstChild.append(" ", chart.downloads);
  const keys = names.map((name, place) => element("span", { class: "key" }, element("i", { style: { background: colourOf(place), "border-color": colourOf(place) } }), name));
  container.append(element("div", { class: "controls" }, element("span", { class: "keys" }, keys), `median measured ÷ predicted ${showNumber(comparison.ratio)}`));
  if (words) container.append(words);
  chart.draw();

  function draw(pen, width, height) {
    const box = { left: 96, top: 10, right: width - 12, bottom: height - 42 };
    const x = scale(...ends, box.left, box.right, true), y = scale(...ends, box.bottom, box.top, true);
    const named = (place) => ticks(...ends, 5, true).map((value) => [place(value), showSeconds(value)]);
    drawAxes(pen, box, { x: named(x), y: named(y), xTitle: "predicted", yTitle: "measured" });
    pen.line([[x(ends[0]), y(ends[0])], [x(ends[1]), y(ends[1])]], { stroke: themeColour("muted"), dash: [3, 3] });
    placed = dots.map((bar) => ({ bar, x: x(bar.predicted), y: y(bar.end - bar.start) }));
    for (const dot of placed) {
      const kind = names.indexOf(dot.bar.technique || "unknown"), fill = colourOf(kind);
      if (kind % 3 === 0) pen.circle(dot.x, dot.y, 4, { fill, alpha: 0.75 });
      else if (kind % 3 === 1) pen.rect(dot.x - 4, dot.y - 4, 8, 8, { fill, alpha: 0.75 });
      else pen.line([[dot.x - 4, dot.y + 4], [dot.x, dot.y - 4], [dot.x + 4, dot.y + 4], [dot.x - 4, dot.y + 4]], { stroke: fill, width: 2 });
    }
  }

  function hover(x, y) {
    const near = placed.find((dot) => Math.hypot(dot.x - x, dot.y - y) < 7);
    if (!near) return null;
    const { bar } = near, measured = bar.end - bar.start;
    return [bar.ids.map((id) => state.name(id)).slice(0, 4).join(", "), `${bar.technique} on ${bar.devices.join(", ")}`, `predicted ${showSeconds(bar.predicted)}, measured ${showSeconds(measured)}`, `ratio ${(measured / bar.predicted).toFixed(2)}`];
  }
}
