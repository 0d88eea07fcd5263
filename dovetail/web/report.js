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
    const numbers = x.every((value) => typeof value === "number"), ticks = [...new Set(x)];
    const trace = {
      type: "scatter", mode: "markers", x: numbers ? x : x.map(String), y, text: dots.map((task) => task.name),
      marker: { size: 9, opacity: 0.75, color: colour("accent") }, hovertemplate: "<b>%{text}</b><br>%{y:.5g} at %{x}<extra></extra>",
    };
    Plotly.react("against-chart", [trace], dressed({
      height: 380, hovermode: "closest", showlegend: false,
      xaxis: { title: { text: escaped(parameters[parameter]) }, type: !numbers ? "category" : spansTens(x) ? "log" : "linear", zeroline: false, ...(numbers && ticks.length <= 8 ? { tickvals: ticks, ticktext: ticks.map(written) } : {}) },
      yaxis: { title: { text: escaped(metrics[outcome].name) }, type: y.length && spansTens(y) ? "log" : "linear", zeroline: false },
    }), config);
    drawParallel(outcome, tasks.filter((task) => task.came[outcome] !== null));
  }

  const escaped = (text) => text.replace(/&/g, "&amp;").replace(/</g, "&lt;").replace(/>/g, "&gt;");

  // All parameters and the outcome side by side, in SVG: plotly's own form of this needs WebGL and code that it makes from
  // text, which the page's policy forbids. Tasks are joined in a few traces by how good they are, the best on top.
  let kept = null; // the tasks that were picked on the axes; null: all
  const SHADES = 9;

  function drawParallel(outcome, dots) {
    const { parameters, metrics } = data.outcomes, better = metrics[outcome].goal === "max", count = dots.length;
    const axes = parameters.map((name, place) => axisOf(name, dots.map((task) => task.given[place])));
    axes.push(axisOf(metrics[outcome].name, dots.map((task) => task.came[outcome])));
    const right = axes.length - 1, merit = axes[right].shares.map((share) => (better ? share : 1 - share));
    const order = dots.map((_, number) => number).sort((a, b) => merit[a] - merit[b]);
    const traces = Array.from({ length: SHADES + 1 }, (_, shade) => shadeTrace(shade)), slanted = right > 7;
    order.forEach((number, rank) => {
      const picked = kept === null || kept.has(dots[number]);
      const trace = traces[picked ? 1 + Math.round(merit[number] * (SHADES - 1)) : 0];
      axes.forEach((axis, place) => {
        // Tasks that share a value lie beside each other, as far as there is room.
        const aside = axis.tied && place < right ? 0.04 * (rank / (count - 1) - 0.5) : 0;
        trace.x.push(place);
        trace.y.push(axis.shares[number] + aside);
        trace.text.push(`<b>${escaped(dots[number].name)}</b><br>${axis.label}: ${axis.shown[number]}`);
        trace.customdata.push(number);
      });
      for (const list of [trace.x, trace.y, trace.text, trace.customdata]) list.push(null);
    });
    Plotly.react("parallel-chart", traces.filter((trace) => trace.x.length), dressed({
      height: 440, showlegend: false, hovermode: "closest", dragmode: "select", margin: { l: 44, r: slanted ? 90 : 24, t: 56, b: 20 },
      annotations: axes.flatMap((axis, place) => axis.ticks.map(([share, text]) => tickLabel(place, share, text, place === right))),
      yaxis: { visible: false, fixedrange: true, range: [-0.06, 1.06] },
      xaxis: {
        side: "top", tickangle: slanted ? -30 : 0, tickvals: axes.map((_, place) => place), ticktext: axes.map((axis) => axis.label), tickfont: { color: colour("ink") },
        gridcolor: colour("muted"), zeroline: false, fixedrange: true, range: [-0.45, right + 0.45],
      },
    }), config);
    const chart = byId("parallel-chart");
    chart.picking = (points) => {
      const passing = new Map();
      for (const { x, customdata } of points) passing.set(x, (passing.get(x) ?? new Set()).add(dots[customdata]));
      const passes = (task) => (kept?.has(task) ?? true) && [...passing.values()].every((each) => each.has(task));
      kept = points.length ? new Set(dots.filter(passes)) : null;
      drawParallel(outcome, dots);
    };
    if (chart.listens) return;
    chart.listens = true;
    // Drawing anew ends the selection, which is told as one of nothing.
    chart.on("plotly_selected", (event) => event?.points.length && chart.picking(event.points));
    chart.on("plotly_doubleclick", () => chart.picking([]));
  }

  // The lines of the tasks that are about as good as each other, from orange by grey to blue; number 0 is of those that
  // were not picked.
  function shadeTrace(number) {
    const ends = [[213, 94, 0], [140, 140, 140], [0, 114, 178]], at = (2 * (number - 1)) / (SHADES - 1), from = Math.min(Math.floor(at), 1);
    const mixed = number && ends[from].map((each, part) => Math.round(each + (at - from) * (ends[from + 1][part] - each)));
    const look = number
      ? { mode: "lines+markers", line: { color: `rgb(${mixed})`, width: 1.5 }, opacity: 0.8, hovertemplate: "%{text}<extra></extra>" }
      : { mode: "lines", line: { color: colour("line"), width: 1 }, hoverinfo: "skip" };
    const shown = { marker: { opacity: 1 } };
    return { type: "scatter", x: [], y: [], text: [], customdata: [], marker: { size: 4 }, selected: shown, unselected: shown, ...look };
  }

  const shortened = (text, most) => (text.length > most ? `${text.slice(0, most - 1)}…` : text);

  function tickLabel(place, share, text, isLast) {
    const side = isLast ? { xanchor: "left", xshift: 6 } : { xanchor: "right", xshift: -6 };
    return { x: place, y: share, text: escaped(shortened(text, 14)), showarrow: false, font: { size: 11 }, bgcolor: `${colour("panel")}cc`, borderpad: 1, ...side };
  }

  // Where values lie on an axis, from 0 to 1. Numbers over several powers of ten lie by their logarithms, words by their
  // number in order.
  function axisOf(name, values) {
    const words = values.map((value) => (value === null ? "none" : typeof value === "number" ? written(value) : String(value)));
    const distinct = [...new Set(words)].sort((a, b) => a.localeCompare(b, undefined, { numeric: true }));
    const numbers = values.every((value) => typeof value === "number"), tens = numbers && spansTens(values);
    const places = values.map((value, number) => (!numbers ? distinct.indexOf(words[number]) : tens ? Math.log10(value) : value));
    const low = Math.min(...places), span = Math.max(...places) - low;
    const shares = places.map((place) => (span ? (place - low) / span : 0.5));
    const each = distinct.map((word) => [shares[words.indexOf(word)], word]);
    const nearest = (share) => each.reduce((a, b) => (Math.abs(b[0] - share) < Math.abs(a[0] - share) ? b : a));
    const ticks = apart(numbers && distinct.length > 8 ? [...new Set([0, 0.25, 0.5, 0.75, 1].map(nearest))] : each);
    return { label: escaped(shortened(name, 24)), shares, ticks, shown: words.map(escaped), tied: distinct.length < values.length };
  }

  function written(value) {
    if (String(value).length <= 6) return String(value);
    return value !== 0 && Math.abs(value) < 0.001 ? value.toExponential(1) : String(Number(value.toPrecision(4)));
  }

  // The ticks whose labels do not lie on each other, both ends among them.
  function apart(ticks) {
    const sorted = [...ticks].sort(([a], [b]) => a - b), last = sorted[sorted.length - 1], found = [];
    for (const tick of sorted) {
      const room = (other) => Math.abs(tick[0] - other[0]) >= 0.055;
      if (tick === last || (room(last) && (!found.length || room(found[found.length - 1])))) found.push(tick);
    }
    return found;
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
