// Placements as they ran and as they were planned, as the bars of a Gantt chart; and what devices did over time.
import { state } from "./state.js";

// The places in a span as the server sends it.
export const SPAN = { placement: 0, start: 1, end: 2, predicted: 3, from: 4, to: 5, until: 6, devices: 7, technique: 8, bytes: 9 };

let cached = { list: null, bars: [] };

/** The order of a task among all, by which it has its colour. */
export function placesOf() {
  if (cached.placeList !== state.rows) cached = { ...cached, placeList: state.rows, places: new Map(state.rows.map((row, place) => [row.id, place])) };
  return cached.places;
}

/** Placements as they ran, by start; the spans of a gang's tasks make one bar. */
export function measuredBars() {
  if (cached.list === state.rows) return cached.bars;
  const single = new Map();
  for (const row of state.rows) {
    const earlier = (row.earlier ?? []).map((span, place) => barOf(row, span, "discarded", row.earlier[place + 1]));
    const own = row.spans.map((span, place) => barOf(row, span, outcomeOf(span, place === row.spans.length - 1), row.spans[place + 1]));
    for (const bar of [...earlier, ...own]) {
      const key = `${bar.placement} ${bar.devices}`, found = single.get(key);
      if (found) found.push(bar); else single.set(key, [bar]);
    }
  }
  const bars = [...single.values()].flatMap((alike) => (alike.length === 1 ? alike : merged(alike)));
  bars.sort((a, b) => a.start - b.start);
  cached = { ...cached, list: state.rows, bars };
  return bars;
}

function outcomeOf(span, isLast) {
  if (span[SPAN.end] === null) return isLast ? "running" : "interrupted";
  return span[SPAN.to] >= span[SPAN.until] ? "completed" : "interrupted";
}

// One that was never closed but has a successor is the mark of a controller that was killed: it reaches to that.
function barOf(row, span, outcome, next) {
  const open = outcome === "running" ? null : next?.[SPAN.start] ?? span[SPAN.start];
  return {
    ids: [row.id], placement: span[SPAN.placement], devices: span[SPAN.devices], start: span[SPAN.start], end: span[SPAN.end] ?? open,
    predicted: span[SPAN.predicted], steps: [Math.max(span[SPAN.to] - span[SPAN.from], 0)], whole: span[SPAN.until] - span[SPAN.from],
    technique: span[SPAN.technique], bytes: span[SPAN.bytes], outcome,
  };
}

/** One bar for those that overlap: a gang. Those that do not are a placement's repeated attempts. */
function merged(bars) {
  const found = [];
  for (const bar of bars.sort((a, b) => a.start - b.start)) {
    const last = found[found.length - 1];
    if (last && bar.start < (last.end ?? Infinity) && !last.ids.includes(bar.ids[0])) {
      last.ids.push(...bar.ids);
      last.steps.push(...bar.steps);
      last.end = last.end === null || bar.end === null ? null : Math.max(last.end, bar.end);
      last.predicted = Math.max(last.predicted, bar.predicted);
      last.outcome = ["running", "interrupted", "completed", "discarded"].find((each) => each === last.outcome || each === bar.outcome);
    } else found.push({ ...bar, ids: [...bar.ids], steps: [...bar.steps] });
  }
  return found;
}

/** A plan's placements as bars. */
export function plannedBars(plan) {
  return (plan?.placements ?? []).map(([ids, steps, devices, start, end, technique, measured]) => ({
    ids, steps, devices, start, end, predicted: end - start, technique, measured, outcome: "planned", bytes: 0,
  }));
}

/** What was measured of orders that have ended, as bars with the share of their time in which devices computed. */
export function loadBars(loads) {
  return loads.map(([devices, start, end, share, bytes]) => ({ devices, start, end, share: share ?? 1, bytes, outcome: "completed" }));
}

/** What devices did over time, in `count` equal parts: of each part the share of devices that were busy, of all or of one. */
export function busyOverTime(bars, devices, low, high, count) {
  const width = (high - low) / count || 1, busy = devices.map(() => new Float64Array(count));
  const place = new Map(devices.map((device, number) => [device, number]));
  for (const bar of bars) {
    if (bar.outcome === "discarded") continue;
    const end = Math.min(bar.end ?? state.now, high), first = Math.max(Math.floor((bar.start - low) / width), 0);
    for (let part = first; part < count && low + part * width < end; part += 1) {
      const seconds = Math.min(end, low + (part + 1) * width) - Math.max(bar.start, low + part * width);
      for (const device of bar.devices) if (place.has(device) && seconds > 0) busy[place.get(device)][part] += ((bar.share ?? 1) * seconds) / width;
    }
  }
  return busy.map((each) => each.map((share) => Math.min(share, 1)));
}

/** Of each part of the time the bytes that were held on a device, the most at once. */
export function bytesOverTime(bars, device, low, high, count) {
  const width = (high - low) / count || 1, held = new Float64Array(count);
  for (const bar of bars) {
    if (!bar.bytes || bar.outcome === "discarded" || !bar.devices.includes(device)) continue;
    const end = Math.min(bar.end ?? state.now, high);
    for (let part = Math.max(Math.floor((bar.start - low) / width), 0); part < count && low + part * width < end; part += 1) held[part] = Math.max(held[part], bar.bytes);
  }
  return held;
}

/** From when to when there is something to see. */
export function timeRange(bars) {
  const low = state.data.origin ?? 0;
  let high = low + 1;
  for (const bar of bars) { const end = bar.end ?? state.now; if (end > high) high = end; }
  return [low, high];
}
