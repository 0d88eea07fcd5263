// Every task in a table: sorted, filtered, searched, grouped, with a small curve each.
import { chip, element, fill, plural, showMoment, showNumber, showSeconds } from "./text.js";
import { state } from "./state.js";
import { addressOf, goTo, here, keepChosen } from "./route.js";
import { button, choice, search } from "./controls.js";
import { csvOf, download } from "./pen.js";
import { VirtualTable } from "./rows.js";
import { SPAN } from "./bars.js";
import { countsOf } from "./overview.js";
import { storeWord } from "./parts.js";

const SVG = "http://www.w3.org/2000/svg";
const METRICS = 3, PARAMETERS = 5, SPARK_WIDTH = 96, SPARK_HEIGHT = 22, MOST_COMPARED = 200;

/** The metrics' names: those of evaluations before those of training steps. */
export function metricNames(rows = state.rows) {
  const found = new Set();
  for (const row of rows) for (const name in row.metrics) found.add(name);
  return [...found].sort((a, b) => a.startsWith("train/") - b.startsWith("train/") || a.localeCompare(b));
}

/** The parameters in which tasks differ; what most tasks have comes first, and seeds last of what as many have. */
export function variedParameters(rows = state.rows) {
  const values = new Map(), counts = new Map();
  for (const row of rows) for (const name in row.given) {
    if (!values.has(name)) values.set(name, new Set());
    values.get(name).add(row.given[name]);
    counts.set(name, (counts.get(name) ?? 0) + 1);
  }
  const varied = [...values.keys()].filter((name) => values.get(name).size > 1 || counts.get(name) < rows.length);
  varied.sort((a, b) => counts.get(b) - counts.get(a) || (a === "seed") - (b === "seed"));
  return new Set(rows.map((row) => row.program)).size > 1 ? [...varied, "program"] : varied;
}

export const givenOf = (row, name) => (name === "program" && !(name in row.given) ? row.program : row.given[name]);

export function trainedSeconds(row) {
  return row.spans.reduce((sum, span, place) => sum + Math.max((span[SPAN.end] ?? row.spans[place + 1]?.[SPAN.start] ?? state.now) - span[SPAN.start], 0), 0);
}

const SORTS = {
  name: (row) => row.name, status: (row) => row.status, steps: (row) => (row.last_step ? row.step / row.last_step : row.step), trained: trainedSeconds,
  attempts: (row) => row.attempts ?? 0, started: (row) => row.spans[0]?.[SPAN.start], priority: (row) => row.priority ?? 1, family: (row) => row.family ?? "",
};

function sortKey(name) {
  if (SORTS[name]) return SORTS[name];
  if (name.startsWith("metric:")) { const metric = name.slice(7); return (row) => { const found = row.metrics[metric]; return found ? found[1] ?? (typeof found[0] === "number" ? found[0] : undefined) : undefined; }; }
  const parameter = name.slice(6);
  return (row) => givenOf(row, parameter);
}

/** Rows in the order of a column; what has no value comes last either way. */
export function sorted(rows, by) {
  if (!by) return rows;
  const key = sortKey(by.replace(/^-/, "")), sign = by.startsWith("-") ? -1 : 1;
  const there = [], missing = [];
  for (const row of rows) { const value = key(row); (value === undefined || value === null || value === "" ? missing : there).push([value, row]); }
  const collator = new Intl.Collator(undefined, { numeric: true });
  there.sort(([a], [b]) => sign * (typeof a === "number" && typeof b === "number" ? a - b : collator.compare(String(a), String(b))));
  return [...there, ...missing].map(([, row]) => row);
}

/** Whether a row is what was searched for: words of its name, its parameters as name=value, its program or family. */
function matcher(text) {
  const words = text.toLowerCase().split(/\s+/).filter(Boolean);
  if (!words.length) return () => true;
  return (row) => {
    const said = (row.said ??= [row.name, row.program, row.family ?? "", row.reason ?? "", row.entity ?? "", ...Object.entries(row.given).map(([name, value]) => `${name}=${value}`)].join(" ").toLowerCase());
    return words.every((word) => said.includes(word));
  };
}

export function tasksView(container) {
  const picked = new Set(), sparks = new Map();
  let wanted = [];
  const panel = element("section", {}, element("h2", {}, "Tasks")), counts = element("div", { class: "counts", role: "group", "aria-label": "Status" }), about = element("p", { class: "note", role: "status" });
  const seek = search("search", "Search: words, rate=0.1, a reason", () => arrange());
  const groups = choice("group", "Group by", groupOptions(), () => arrange(), "");
  const metric = choice("spark", "Small curve of", sparkOptions(), () => { sparks.clear(); columns(); });
  const compare = button("Compare", () => goTo("compare", { tasks: chosenIds().join(","), ...storeWord() }), "main");
  const csv = button("CSV", () => download("tasks.csv", "text/csv", csvOf(tableRows())), "quiet");
  csv.setAttribute("aria-label", "Download the tasks as CSV");
  panel.append(counts, element("div", { class: "controls" }, seek.node, groups.node, metric.node, compare, element("span", { class: "downloads" }, csv)));
  const table = new VirtualTable(panel, { label: "Tasks", onSort: (by) => { keepChosen({ sort: by }); columns(); arrange(); }, onRange: (items) => { wanted = items; fetchSparks(); } });
  panel.append(about);
  container.append(panel);

  const chosenIds = () => (picked.size ? [...picked] : table.items.filter((item) => item.id).slice(0, MOST_COMPARED).map((item) => item.id)).slice(0, MOST_COMPARED);
  function groupOptions() { return [["", "nothing"], ["family", "family"], ["status", "status"], ["workload", "workload"], ...variedParameters().map((name) => [`given:${name}`, name])]; }
  function sparkOptions() { return [...metricNames().map((name) => [name, name])]; }

  function columns() {
    const sort = here().chosen.get("sort") ?? "";
    const metrics = metricNames().slice(0, METRICS), varied = variedParameters().slice(0, PARAMETERS);
    const number = (name, title, cell, width = "100px") => ({ key: name, title, kind: "number", width, cell });
    table.setColumns([
      { title: "", width: "36px", cell: pickBox },
      { key: "name", title: "Task", width: "280px", cell: (row) => element("a", { href: addressOf("task", { id: row.id, ...storeWord() }), title: row.name }, row.former ? `${row.name} (former)` : row.name) },
      { key: "status", title: "Status", width: "120px", cell: (row) => chip(row.status) },
      number("steps", "Steps", (row) => (row.last_step ? `${showNumber(row.step)} / ${showNumber(row.last_step)}` : showNumber(row.step)), "120px"),
      ...(metric.value ? [{ title: metric.value, width: "118px", cell: (row) => sparkOf(row) }] : []),
      ...metrics.map((name) => number(`metric:${name}`, name, (row) => metricCell(row.metrics[name]), "130px")),
      ...varied.map((name) => number(`given:${name}`, name, (row) => showNumber(givenOf(row, name)))),
      number("trained", "Trained", (row) => (row.spans.length ? showSeconds(trainedSeconds(row)) : "–"), "110px"),
      number("attempts", "Attempts", (row) => showNumber(row.attempts ?? 0), "84px"),
      { key: "started", title: "Started", width: "160px", cell: (row) => (row.spans.length ? showMoment(row.spans[0][SPAN.start]) : "–") },
      { title: "Reason", width: "260px", cell: (row) => (row.reason ? element("span", { title: row.reason }, row.reason) : "") },
    ], sort);
  }

  function metricCell(found) {
    if (!found) return "";
    const [last, best] = found;
    return best === null || best === last ? showNumber(last) : element("span", { title: `last ${last}, best ${best}` }, `${showNumber(last)} · ${showNumber(best)}`);
  }

  function pickBox(row) {
    const box = element("input", { type: "checkbox", "aria-label": `Select ${row.name}`, onchange: () => { if (box.checked) picked.add(row.id); else picked.delete(row.id); say(); } });
    box.checked = picked.has(row.id);
    return box;
  }

  function sparkOf(row) {
    const known = sparks.get(row.id);
    return known ? drawSpark(known.values) : "";
  }

  // Only the rows in sight ask for their curves, once they have come to rest.
  function fetchSparks() {
    clearTimeout(fetchSparks.timer);
    fetchSparks.timer = setTimeout(async () => {
      const name = metric.value, missing = wanted.filter((row) => row.id && row.metrics[name] && sparks.get(row.id)?.step !== row.step).slice(0, 80);
      if (!name || !missing.length) return;
      const steps = new Map(missing.map((row) => [row.id, row.step]));
      const found = await state.ask("sparks", { metric: name, task: missing.map((row) => row.id) }).catch(() => null);
      if (!found || name !== metric.value) return;
      for (const [id, step] of steps) sparks.set(id, { step, values: found[id] ?? [] });
      if (sparks.size > 2000) for (const id of [...sparks.keys()].slice(0, 1000)) sparks.delete(id);
      table.refresh();
    }, 120);
  }

  function arrange() {
    const { chosen } = here(), status = chosen.get("status"), matches = matcher(seek.value);
    const shown = sorted(state.rows.filter((row) => (!status || row.status === status) && matches(row)), chosen.get("sort"));
    table.setItems(grouped(shown, groups.value));
    table.shown = shown.length;
    say();
  }

  function grouped(rows, by) {
    if (!by) return rows;
    const key = by.startsWith("given:") ? (row) => `${by.slice(6)} = ${showNumber(givenOf(row, by.slice(6))) || "none"}` : (row) => row[by] || "not known yet";
    const found = new Map();
    for (const row of rows) { const name = String(key(row)); if (!found.has(name)) found.set(name, []); found.get(name).push(row); }
    return [...found].sort(([a], [b]) => a.localeCompare(b, undefined, { numeric: true })).flatMap(([name, members]) => [{ group: `${name}: ${plural(members.length, "task")}${summary(members)}` }, ...members]);
  }

  function summary(members) {
    const words = metricNames(members).slice(0, 2).map((name) => {
      const values = members.map((row) => row.metrics[name]?.[1] ?? row.metrics[name]?.[0]).filter((value) => typeof value === "number");
      return values.length ? `${name} ${showNumber(values.reduce((sum, value) => sum + value, 0) / values.length)} on average` : "";
    }).filter(Boolean);
    return words.length ? `, ${words.join(", ")}` : "";
  }

  function say() {
    about.textContent = state.tasks.size ? `${showNumber(table.shown ?? 0)} of ${plural(state.tasks.size, "task")}${picked.size ? `, ${picked.size} selected` : ""}.` : "No task has been described yet.";
    const { chosen } = here(), found = countsOf(state.rows);
    const choices = [["", `all ${state.tasks.size}`], ...Object.entries(found).filter(([, count]) => count).map(([status, count]) => [status, `${count} ${status}`])];
    fill(counts, choices.map(([status, text]) => element("button", { type: "button", "aria-pressed": String((chosen.get("status") ?? "") === status), onclick: () => { keepChosen({ status }); arrange(); } }, text)));
    compare.textContent = picked.size ? `Compare ${picked.size}` : "Compare these";
  }

  function tableRows() {
    const metrics = metricNames(), given = [...new Set(state.rows.flatMap((row) => Object.keys(row.given)))];
    const head = ["task", "id", "workload", "status", "step", "last step", "attempts", "trained seconds", "reason", ...given, ...metrics.flatMap((name) => [name, `best ${name}`])];
    return [head, ...table.items.filter((item) => item.id).map((row) => [row.name, row.id, row.workload, row.status, row.step, row.last_step, row.attempts ?? 0, trainedSeconds(row), row.reason ?? "", ...given.map((name) => row.given[name]), ...metrics.flatMap((name) => row.metrics[name] ?? ["", ""])])];
  }

  columns();
  arrange();
  let lastArranged = performance.now();
  return {
    update(change) {
      if (change.anew || !metric.value) { metric.set(sparkOptions(), metric.value); groups.set(groupOptions(), groups.value); columns(); }
      // Rows that change all the time must not jump about all the time.
      if (change.anew || performance.now() - lastArranged > 900) { arrange(); lastArranged = performance.now(); }
    },
    resize: () => table.resize(),
  };
}

/** A small curve; as a picture of its own, for a canvas in each of many rows takes longer to make than all the rest. */
function drawSpark(values) {
  const finite = values.filter((value) => value !== null);
  if (finite.length < 2) return "";
  const low = Math.min(...finite), span = Math.max(...finite) - low || 1;
  let path = "";
  values.forEach((value, place) => {
    if (value === null) return;
    const x = 1 + (place / (values.length - 1)) * (SPARK_WIDTH - 2), y = SPARK_HEIGHT - 2 - ((value - low) / span) * (SPARK_HEIGHT - 4);
    path += `${path ? "L" : "M"}${x.toFixed(1)} ${y.toFixed(1)}`;
  });
  const picture = document.createElementNS(SVG, "svg"), line = document.createElementNS(SVG, "path");
  picture.setAttribute("width", SPARK_WIDTH);
  picture.setAttribute("height", SPARK_HEIGHT);
  picture.setAttribute("aria-hidden", "true");
  line.setAttribute("d", path);
  line.setAttribute("class", "spark");
  picture.append(line);
  return picture;
}
