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
    const weight = Number(byId("smoothing").value), hover = "<b>%{text}</b><br>%{y:.5g} at %{x:,.6~g} " + unit + "<extra></extra>";
    const line = (curve, x, y) => ({
      type: "scatter", name: curve.name, text: curve.name, mode: y.length < 30 ? "lines+markers" : "lines",
      x: x.map((value) => value / divisor), y: smoothed(y, weight), marker: { size: 5 },
      line: { color: curve.color, dash: curve.dash, width: 1.8 }, hovertemplate: hover,
    });
    const traces = byId("bands")?.checked
      ? bands(metric.curves, over).flatMap((band) => bandTraces(band, line, divisor, weight))
      : metric.curves.map((curve) => line(curve, curve[over], curve.values));
    const logarithmic = byId("logarithmic").checked, range = byId("robust")?.checked ? metric.range : null;
    const shown = range && (logarithmic ? (range[0] > 0 ? range.map(Math.log10) : null) : range);
    const titles = { steps: "steps", trained: unit + " of training", wall: unit + " since the start" };
    const narrow = byId("curves-chart").clientWidth < 560;
    Plotly.react("curves-chart", traces, dressed({
      height: 430, hovermode: "closest", showlegend: !narrow && traces.length > 1, uirevision: "kept",
      xaxis: { title: { text: titles[over] }, zeroline: false },
      yaxis: { type: logarithmic ? "log" : "linear", zeroline: false, ...(shown ? { range: shown } : { autorange: true }) },
    }), config);
  }

  // An average in which older values fade, corrected for its beginning; where there is no value, there is none.
  function smoothed(values, weight) {
    if (!weight) return values;
    let sum = 0, mass = 0;
    return values.map((value) => {
      if (value === null) return null;
      sum = weight * sum + (1 - weight) * value;
      mass = weight * mass + (1 - weight);
      return sum / mass;
    });
  }

  // Tasks that differ in their seed alone: at each place where any has a value, the mean, the least and the greatest.
  function bands(curves, over) {
    const groups = new Map();
    for (const curve of curves) groups.set(curve.group, [...(groups.get(curve.group) ?? []), curve]);
    return [...groups].map(([name, members]) => {
      const at = new Map();
      for (const curve of members) curve.steps.forEach((step, place) => {
        const value = curve.values[place];
        if (value !== null) at.set(step, [...(at.get(step) ?? []), [curve[over][place], value]]);
      });
      const mean = (list) => list.reduce((sum, each) => sum + each, 0) / list.length;
      const rows = [...at].sort(([a], [b]) => a - b).map(([, found]) => {
        const values = found.map(([, value]) => value);
        return [mean(found.map(([x]) => x)), mean(values), Math.min(...values), Math.max(...values)];
      });
      const column = (place) => rows.map((row) => row[place]);
      return { name, count: members.length, first: members[0], x: column(0), mean: column(1), low: column(2), high: column(3) };
    });
  }

  function bandTraces(band, line, divisor, weight) {
    const edge = (y) => ({
      type: "scatter", mode: "lines", x: band.x.map((value) => value / divisor), y: smoothed(y, weight), line: { width: 0 },
      hoverinfo: "skip", showlegend: false, legendgroup: band.name,
    });
    const middle = line({ ...band.first, name: `${band.name} (${band.count})` }, band.x, band.mean);
    if (band.count === 1) return [middle];
    return [edge(band.low), { ...edge(band.high), fill: "tonexty", fillcolor: band.first.color + "33" }, { ...middle, legendgroup: band.name }];
  }

  const spansTens = (values) => values.every((value) => value > 0) && Math.max(...values) > 20 * Math.min(...values);

  function drawAgainst() {
    if (!data.outcomes) return;
    const { parameters, metrics, tasks } = data.outcomes;
    const outcome = Number(byId("outcome").value), parameter = Number(byId("parameter").value);
    const dots = tasks.filter((task) => task.came[outcome] !== null && task.given[parameter] !== null);
    const x = dots.map((task) => task.given[parameter]), y = dots.map((task) => task.came[outcome]);
    const numbers = x.every((value) => typeof value === "number");
    const trace = {
      type: "scatter", mode: "markers", x: numbers ? x : x.map(String), y, text: dots.map((task) => task.name),
      marker: { size: 9, opacity: 0.75, color: colour("accent") }, hovertemplate: "<b>%{text}</b><br>%{y:.5g} at %{x}<extra></extra>",
    };
    Plotly.react("against-chart", [trace], dressed({
      height: 380, hovermode: "closest", showlegend: false,
      xaxis: { title: { text: escaped(parameters[parameter]) }, type: !numbers ? "category" : spansTens(x) ? "log" : "linear", zeroline: false },
      yaxis: { title: { text: escaped(metrics[outcome].name) }, type: y.length && spansTens(y) ? "log" : "linear", zeroline: false },
    }), config);
    drawParallel(outcome, tasks.filter((task) => task.came[outcome] !== null));
  }

  const escaped = (text) => text.replace(/&/g, "&amp;").replace(/</g, "&lt;").replace(/>/g, "&gt;");

  function drawParallel(outcome, dots) {
    const { parameters, metrics } = data.outcomes, came = dots.map((task) => task.came[outcome]);
    const dimensions = parameters.map((name, place) => axisOf(name, dots.map((task) => task.given[place])));
    const better = metrics[outcome].goal === "max";
    dimensions.push({ label: escaped(metrics[outcome].name), values: came });
    const trace = {
      type: "parcoords", dimensions,
      line: { color: came, colorscale: "Viridis", reversescale: !better, showscale: true },
      labelfont: { color: colour("ink") }, tickfont: { color: colour("muted") }, rangefont: { color: colour("muted") },
    };
    Plotly.react("parallel-chart", [trace], dressed({ height: 420, margin: { l: 72, r: 72, t: 56, b: 28 }, xaxis: {}, yaxis: {} }), config);
    if (document.querySelector("#parallel-chart .no-webgl")) {
      Plotly.purge("parallel-chart");
      byId("parallel-chart").replaceChildren();
      drawLines(dimensions, dots, better);
    }
  }

  // The same where the browser cannot draw it: a line for each task, the better the stronger; nothing can be dragged.
  function drawLines(dimensions, dots, better) {
    const shares = dimensions.map(({ values }) => {
      const low = Math.min(...values), span = Math.max(...values) - low;
      return values.map((value) => (span ? (value - low) / span : 0.5));
    });
    const place = dimensions.map((_, number) => number), last = shares[shares.length - 1];
    const traces = dots.map((task, number) => ({
      type: "scatter", mode: "lines", name: task.name, x: place, y: shares.map((each) => each[number]), hoverinfo: "name",
      line: { color: colour("accent") }, opacity: 0.15 + 0.85 * (better ? last[number] : 1 - last[number]) ** 2,
    }));
    Plotly.react("parallel-chart", traces, dressed({
      height: 420, showlegend: false, hovermode: "closest", yaxis: { visible: false },
      xaxis: { tickvals: place, ticktext: dimensions.map((each) => each.label), zeroline: false, range: [-0.2, place.length - 0.8] },
    }), config);
  }

  // Numbers over several powers of ten are drawn by their logarithms, words by their number in order.
  function axisOf(name, values) {
    const given = values.filter((value) => value !== null);
    if (given.length === values.length && given.every((value) => typeof value === "number")) {
      if (!spansTens(given)) return { label: escaped(name), values };
      const ticks = [...new Set(given)].sort((a, b) => a - b), shown = ticks.length > 8 ? [ticks[0], ticks[ticks.length - 1]] : ticks;
      return { label: escaped(name), values: values.map(Math.log10), tickvals: shown.map(Math.log10), ticktext: shown.map((each) => each.toPrecision(3)) };
    }
    const words = [...new Set(values.map((value) => (value === null ? "none" : String(value))))].sort();
    const place = (value) => words.indexOf(value === null ? "none" : String(value));
    return { label: escaped(name), values: values.map(place), tickvals: words.map((_, number) => number), ticktext: words.map(escaped) };
  }

  function drawPredictions() {
    if (data.predictions) Plotly.react("predictions-chart", data.predictions.data, dressed(data.predictions.layout), config);
  }

  function draw() { drawGantt(); drawCurves(); drawAgainst(); drawPredictions(); }

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
  for (const input of document.querySelectorAll("input[name=over], #metric, #logarithmic, #bands, #robust")) input.addEventListener("change", drawCurves);
  byId("smoothing")?.addEventListener("input", drawCurves);
  for (const input of document.querySelectorAll("#outcome, #parameter")) input.addEventListener("change", drawAgainst);
  matchMedia("(prefers-color-scheme: dark)").addEventListener("change", draw);
  draw();
})();
