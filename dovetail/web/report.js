"use strict";
(() => {
  const data = JSON.parse(document.getElementById("data").textContent);
  const byId = (id) => document.getElementById(id);
  const chosen = (name) => document.querySelector(`input[name=${name}]:checked`)?.value;
  const colour = (name) => getComputedStyle(document.documentElement).getPropertyValue(`--${name}`).trim();
  // plotly.js has a button, on unless refused, that uploads the chart's data to its makers.
  const config = {
    responsive: true, displaylogo: false, showSendToCloud: false, plotlyServerURL: "",
    modeBarButtonsToRemove: ["sendChartToCloud", "lasso2d", "select2d", "autoScale2d"],
  };

  // What light and dark share is in the figures; what they do not is put in here.
  function dressed(layout) {
    const axis = { gridcolor: colour("grid"), linecolor: colour("line"), zerolinecolor: colour("grid"), automargin: true };
    const onAxis = (own) => ({ ...axis, ...own, title: { standoff: 12, ...own.title, font: { size: 12.5 } } });
    return {
      paper_bgcolor: "rgba(0,0,0,0)", plot_bgcolor: "rgba(0,0,0,0)", margin: { l: 56, r: 12, t: 28, b: 48 },
      font: { family: getComputedStyle(document.body).fontFamily, size: 12.5, color: colour("muted") },
      hoverlabel: { bgcolor: colour("panel"), bordercolor: colour("line"), font: { color: colour("ink"), size: 12.5 }, align: "left" },
      modebar: { bgcolor: "rgba(0,0,0,0)", color: colour("line"), activecolor: colour("accent") },
      legend: { font: { color: colour("ink") } },
      ...layout, xaxis: onAxis(layout.xaxis), yaxis: onAxis(layout.yaxis),
    };
  }

  function drawGantt() {
    if (!data.gantt) return;
    const plan = chosen("plan") ?? "first";
    const traces = data.gantt.data.filter((trace) => trace.meta === plan || trace.meta === "measured");
    Plotly.react("gantt", traces, dressed(data.gantt.layout), config);
  }

  function timeUnit(seconds) {
    if (seconds < 240) return [1, "seconds"];
    return seconds < 4 * 3600 ? [60, "minutes"] : [3600, "hours"];
  }

  function drawCurves() {
    if (!data.metrics.length) return;
    const metric = data.metrics[Number(byId("metric").value)];
    const over = chosen("over");
    const longest = metric.curves.reduce((most, curve) => curve[over].reduce((a, b) => Math.max(a, b), most), 0);
    const [divisor, unit] = over === "steps" ? [1, "steps"] : timeUnit(longest);
    const traces = metric.curves.map((curve) => ({
      type: "scatter", name: curve.name, text: curve.name, mode: curve.values.length < 30 ? "lines+markers" : "lines",
      x: curve[over].map((value) => value / divisor), y: curve.values, marker: { size: 5 },
      line: { color: curve.color, dash: curve.dash, width: 1.8 },
      hovertemplate: "<b>%{text}</b><br>%{y:.5g} at %{x:,.6~g} " + unit + "<extra></extra>",
    }));
    const titles = { steps: "steps", trained: unit + " of training", wall: unit + " since the start" };
    const narrow = byId("curves-chart").clientWidth < 560;
    Plotly.react("curves-chart", traces, dressed({
      height: 430, hovermode: "closest", showlegend: !narrow && traces.length > 1, uirevision: "kept",
      xaxis: { title: { text: titles[over] }, zeroline: false },
      yaxis: { type: byId("logarithmic").checked ? "log" : "linear", zeroline: false },
    }), config);
  }

  function drawPredictions() {
    if (data.predictions) Plotly.react("predictions-chart", data.predictions.data, dressed(data.predictions.layout), config);
  }

  function draw() { drawGantt(); drawCurves(); drawPredictions(); }

  // Cells sort by data-sort where they have one, as numbers where both are; empty ones come last either way.
  function sortBy(head) {
    const column = [...head.parentNode.children].indexOf(head), body = head.closest("table").tBodies[0];
    const sign = head.getAttribute("aria-sort") === "ascending" ? -1 : 1;
    const key = (line) => line.cells[column].dataset.sort ?? line.cells[column].textContent;
    const rows = [...body.rows].map((line) => [key(line), line]).sort(([a], [b]) => {
      if (a === "" || b === "") return (a === "") - (b === "");
      const difference = Number(a) - Number(b);
      return sign * (Number.isNaN(difference) ? a.localeCompare(b, undefined, { numeric: true }) : difference);
    });
    for (const other of head.parentNode.children) other.removeAttribute("aria-sort");
    head.setAttribute("aria-sort", sign === 1 ? "ascending" : "descending");
    body.append(...rows.map(([, line]) => line));
  }

  for (const head of document.querySelectorAll("table.sortable th")) head.addEventListener("click", () => sortBy(head));
  for (const input of document.querySelectorAll("input[name=plan]")) input.addEventListener("change", drawGantt);
  for (const input of document.querySelectorAll("input[name=over], #metric, #logarithmic")) input.addEventListener("change", drawCurves);
  matchMedia("(prefers-color-scheme: dark)").addEventListener("change", draw);
  draw();
})();
