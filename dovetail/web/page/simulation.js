// A simulation's outcome, by policy: completion times, utilisation and fairness over time, and the figures.
import { element, note, plainTable, showNumber } from "./text.js";
import { CurvesChart } from "./curves.js";
import { onTheme } from "./palette.js";
import { section } from "./parts.js";

export function simulationView(body, frozen) {
  const { simulation, title } = frozen, charts = [];
  const main = element("main", { id: "main" });
  for (const { heading, x, y, lines } of simulation.charts) {
    const panel = section(heading), chart = new CurvesChart(panel, heading.split(":")[0].toLowerCase().replaceAll(" ", "-"));
    panel.firstChild.append(" ", chart.downloads);
    main.append(panel);
    charts.push(() => chart.show(lines.map((line, place) => ({ label: line.name, group: line.name, place, steps: line.x, x: line.x, y: line.y })), { xTitle: x, yTitle: y, logarithmic: false, smoothing: 0, bands: false, robust: false }));
  }
  main.append(section("Figures", plainTable("Figures", simulation.heads.map((head, place) => [head, place ? "number" : ""]), simulation.rows)), note(`${showNumber(simulation.rows.length)} simulated.`));
  body.prepend(element("header", {}, element("div", { class: "bar" }, element("span", { class: "brand" }, "Dovetail simulation")), element("h1", {}, title)), main);
  document.title = `${title} · Dovetail`;
  const draw = () => charts.forEach((each) => each());
  draw();
  onTheme(draw);
  addEventListener("resize", draw);
}
