// All at a glance: how many tasks stand where, when it should be over, what devices do, and what a person should look at.
import { element, fill, note, plainTable, plural, showMoment, showNumber, showSeconds, showShare } from "./text.js";
import { state } from "./state.js";
import { addressOf } from "./route.js";
import { themeColour } from "./palette.js";
import { drawAxes, scale, timeTicks } from "./scales.js";
import { busyOverTime, measuredBars, timeRange } from "./bars.js";
import { incident, list, PenChart, redraw, section, storeWord, taskLink } from "./parts.js";

const PARTS = 240, MOST_LISTED = 40;
const ALERTS = { failed: "failed", late: "late", slow: "slower than predicted", data: "waits for data", lost: "lost", away: "device away" };
const ASKED = { paused: "pause", resumed: "resume", cancelling: "cancel", cancelled: "cancel", prioritized: "priority", submitted: "submitted", retried: "try again", dated: "deadline" };

export function overviewView(container) {
  const tiles = element("dl", { class: "tiles" }), alerts = element("div", {}), reasons = element("div", {}), use = section("Devices in use"), account = element("div", {}), happened = element("div", {}), asked = element("div", {});
  let parts = [], range = [0, 1];
  const chart = new PenChart(use, "utilisation", { label: "The share of devices that were busy, over time.", height: 170, draw, hover, rows: () => [["seconds since the start", "share of devices busy"], ...parts.map((share, place) => [at(place) - range[0], share])] });
  use.firstChild.append(" ", chart.downloads);
  container.append(tiles, alerts, reasons, use, account, happened, asked);
  const at = (place) => range[0] + ((place + 0.5) / PARTS) * (range[1] - range[0]);

  function draw(pen, width, height) {
    const box = { left: 46, top: 8, right: width - 8, bottom: height - 24 }, length = range[1] - range[0];
    const x = scale(0, length, box.left, box.right), y = scale(0, 1, box.bottom, box.top);
    drawAxes(pen, box, { x: timeTicks(0, length, Math.floor(width / 120)).map(([seconds, text]) => [x(seconds), text]), y: [0, 0.5, 1].map((share) => [y(share), showShare(share)]) });
    const wide = (box.right - box.left) / PARTS;
    parts.forEach((share, place) => { if (share > 0) pen.rect(box.left + place * wide, y(share), wide + 0.3, box.bottom - y(share), { fill: themeColour("accent"), alpha: 0.8 }); });
  }

  function hover(x) {
    const place = Math.floor(((x - 46) / (chart.width - 54)) * PARTS);
    return parts[place] === undefined ? null : [`${showShare(parts[place])} busy`, showMoment(at(place))];
  }

  function update() {
    const { data } = state, bars = measuredBars(), devices = data.devices.map((device) => device.name);
    range = timeRange(bars);
    const busy = busyOverTime(bars, devices, ...range, PARTS);
    parts = Array.from({ length: devices.length ? PARTS : 0 }, (_, place) => busy.reduce((sum, each) => sum + each[place], 0) / devices.length);
    use.hidden = !bars.length;
    fill(tiles, tilesOf(bars, parts));
    redraw(alerts, [data.alerts, state.tasks.size], () => fill(alerts, alertList()));
    redraw(reasons, outcomes(), () => explain(reasons));
    redraw(account, data.account, () => fill(account, accountTable()));
    redraw(happened, [data.incidents, state.tasks.size], () => fill(happened, incidents()));
    redraw(asked, [data.requests, state.tasks.size], () => fill(asked, requests()));
    if (bars.length) chart.draw();
  }

  const clock = setInterval(() => { if (!state.isFrozen && !document.hidden) fill(tiles, tilesOf(measuredBars(), parts)); }, 1000);
  update();
  return { update, resize: update, close: () => clearInterval(clock) };
}

const tile = (name, value, detail, kind = "") => element("div", { class: `tile ${kind}` }, element("dt", {}, name), element("dd", {}, value), element("dd", { class: "more" }, detail));

export function countsOf(rows) {
  const counts = Object.fromEntries(Object.keys(state.data.statuses).map((status) => [status, 0]));
  for (const row of rows) if (!row.former) counts[row.status] += 1;
  return counts;
}

function tilesOf(bars, parts) {
  const { data } = state, counts = countsOf(state.rows), { comparison } = data;
  const total = Object.values(counts).reduce((sum, count) => sum + count, 0);
  const others = Object.entries(counts).filter(([status, count]) => count && !["finished", "failed"].includes(status)).map(([status, count]) => `${count} ${status}`);
  const running = new Set(bars.filter((bar) => bar.outcome === "running").flatMap((bar) => bar.devices));
  const mean = parts.length ? parts.reduce((sum, share) => sum + share, 0) / parts.length : null;
  const now = state.isFrozen || !data.devices.length ? "" : `${running.size} of ${data.devices.length} now, `;
  return [
    tile("Finished", showNumber(counts.finished), [`of ${plural(total, "task")}`, ...others].join(", ")),
    tile("Failed", showNumber(counts.failed), counts.failed ? "see below" : "", counts.failed ? "bad" : ""),
    leftTile(data.left, counts),
    tile("Planned", showSeconds(comparison.planned), data.plans_made ? `by the first plan${data.plans_made > 1 ? `, re-planned ${data.plans_made - 1} ×` : ""}` : "no plan yet"),
    tile("Measured", showSeconds(comparison.measured), measuredDetail(comparison, counts)),
    tile("Prediction", comparison.ratio === null ? "–" : comparison.ratio.toFixed(2), "median measured ÷ predicted"),
    tile("Devices", showNumber(data.devices.length), `${now}${mean === null ? "" : `${showShare(mean)} busy since the start`}`),
  ];
}

// What there may be something to explain of: it is asked for anew where this has changed, and not whenever a task ends well.
const outcomes = () => { const { failed, halved, pruned, pending, running } = countsOf(state.rows); return [failed, halved, pruned, state.rows.length && !pending && !running]; };

// What is behind failures, divergence, halving and slowness, once the rest is there.
function explain(panel) {
  if (!outcomes().some(Boolean)) { fill(panel); return; }
  state.ask("why").then((found) => {
    const parts = found.flatMap(({ question, lines }) => [element("h3", {}, question[0].toUpperCase() + question.slice(1)), list(lines)]);
    fill(panel, parts.length ? section("Why", ...parts, note("By chance at most one in twenty of these; 'dovetail why' answers other questions.")) : null);
  }).catch((error) => fill(panel, section("Why", note(error.message))));
}

function leftTile(left, counts) {
  const isLive = !state.isFrozen && state.data.controller;
  if (!left) return tile("Time left", "–", Object.values(counts).some(Boolean) ? "not known, or nothing is left" : "");
  // Counted down between two words of the server.
  const gone = isLive ? Math.max(state.now - state.data.now, 0) : 0, shown = (seconds) => showSeconds(Math.max(seconds - gone, 0));
  return tile("Time left", shown(left.seconds), `${shown(left.low)} to ${shown(left.high)}${isLive ? "" : " once it runs again"}`);
}

function measuredDetail(comparison, counts) {
  if (comparison.measured === null) return "nothing has run yet";
  const unended = counts.pending + counts.running + counts.paused + counts.resting, words = unended ? ["so far"] : [];
  if (comparison.active < 0.95 * comparison.measured) words.push(`${showSeconds(comparison.active)} without pauses`);
  else if (comparison.planned && !unended) words.push(`${(comparison.measured / comparison.planned).toFixed(2)} × planned`);
  return words.join(", ") || "from first start to last end";
}

function alertList() {
  const { alerts } = state.data;
  if (!alerts.length) return null;
  const shown = alerts.slice(0, MOST_LISTED).map((each) => element("li", {}, element("div", { class: "line" },
    element("span", { class: `chip ${each.kind}` }, `▲ ${ALERTS[each.kind] ?? each.kind}`), each.task ? taskLink(each.task) : null, element("span", {}, each.text), each.at ? element("span", { class: "when" }, showMoment(each.at)) : null)));
  const more = alerts.length > MOST_LISTED ? element("p", { class: "note" }, `And ${alerts.length - MOST_LISTED} more: `, element("a", { href: addressOf("tasks", { status: "failed", ...storeWord() }) }, "the tasks that failed")) : null;
  return section("Look at these first", element("ul", { class: "list" }, shown), more);
}

function accountTable() {
  const found = state.data.account;
  if (!found) return null;
  const rows = found.causes.map(([cause, seconds, share, meaning]) => [cause, showSeconds(seconds), showShare(share), meaning]);
  return section("Where the time went", plainTable("Device time by cause", [["Cause", ""], ["Device time", "number"], ["Share", "number"], ["What that is", ""]], rows),
    note(`${showSeconds(found.whole)} on ${plural(found.devices, "device")}, pauses between runs left out.${computed(found.utilisation)}`));
}

function computed(share) {
  return share === null ? "" : ` Devices computed for ${showShare(share)} of their time, whatever for.`;
}

function incidents() {
  const { incidents: found, incidents_total: total } = state.data;
  if (!found.length) return null;
  const items = [...found].reverse().slice(0, MOST_LISTED).map((each) => incident(each.kind, { ...each, text: each.reason }));
  return section("Warnings and failures", element("ol", { class: "list" }, items), total > items.length ? note(`Shown are ${items.length} of ${total}, the newest first.`) : null);
}

function requests() {
  const found = state.data.requests;
  if (!found.length) return null;
  const rows = [...found].reverse().slice(0, MOST_LISTED).map(([at, kind, task, who, words]) => [showMoment(at), ASKED[kind] ?? kind, task ? taskLink(task) : "", who || "by command", words]);
  return section("Asked for", plainTable("What users asked for", [["When", "short"], ["What", ""], ["Task", ""], ["Who", ""], ["More", ""]], rows));
}

