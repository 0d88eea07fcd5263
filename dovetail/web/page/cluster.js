// The devices: what each does and holds over time, how they are linked, what they cost, and who waits for them.
import { chip, element, fill, note, plainTable, plural, showBytes, showNumber, showSeconds, showShare } from "./text.js";
import { state } from "./state.js";
import { colourOf, themeColour } from "./palette.js";
import { timeTicks } from "./scales.js";
import { busyOverTime, bytesOverTime, loadBars, measuredBars, plannedBars, timeRange } from "./bars.js";
import { PenChart, redraw, section, taskLink } from "./parts.js";

const PARTS = 300, LANE = 44, LEFT = 92, MOST_DEVICES = 128, MOST_QUEUED = 200, LOADS_SECONDS = 5;

export function clusterView(container) {
  const lanes = section("Devices over time"), table = element("div", {}), queue = element("div", {}), hardware = element("div", {});
  let shown = { devices: [], busy: [], held: [], range: [0, 1] }, plan = null, cluster = null;
  const chart = new PenChart(lanes, "devices", { label: "Utilisation and memory of each device over time.", height: () => shown.devices.length * LANE + 26, draw, hover, rows: csv });
  lanes.firstChild.append(" ", chart.downloads);
  lanes.append(note("Filled: the share of the time in which the device computed, as it was measured of each order that has ended; of those that run, the time for which they hold it. The line: the most that each held there; of those that run, what their option takes."));
  container.append(lanes, table, queue, hardware);

  function draw(pen, width) {
    const { devices, busy, held, range } = shown, wide = (width - LEFT) / PARTS, bottom = devices.length * LANE;
    for (const [at, text] of timeTicks(0, range[1] - range[0], Math.floor(width / 130))) {
      const x = LEFT + (at / (range[1] - range[0])) * (width - LEFT);
      pen.line([[x, 0], [x, bottom]], { stroke: themeColour("grid") });
      pen.text(x, bottom + 13, text, { fill: themeColour("muted"), size: 11, align: "center" });
    }
    devices.forEach((device, number) => {
      const top = number * LANE + 5, height = LANE - 10, foot = top + height, most = device.memory || Math.max(...held[number], 1);
      pen.text(LEFT - 10, top + height / 2, device.name, { fill: themeColour("ink"), align: "right", most: LEFT - 14 });
      busy[number].forEach((share, part) => { if (share > 0.005) pen.rect(LEFT + part * wide, foot - share * height, wide + 0.3, share * height, { fill: colourOf(4), alpha: 0.75 }); });
      pen.line([[LEFT, foot], [width, foot]], { stroke: themeColour("line") });
      if (held[number].some(Boolean)) pen.line(Array.from(held[number], (bytes, part) => [LEFT + (part + 0.5) * wide, foot - Math.min(bytes / most, 1) * height]), { stroke: colourOf(5), width: 1.6 });
    });
  }

  const partAt = (x) => Math.floor(((x - LEFT) / (chart.width - LEFT)) * PARTS);
  function hover(x, y) {
    const device = shown.devices[Math.floor(y / LANE)], part = partAt(x), number = Math.floor(y / LANE);
    if (!device || part < 0 || part >= PARTS) return null;
    return [device.name, `${showShare(shown.busy[number][part])} busy`, `holds ${showBytes(shown.held[number][part])}${device.memory ? ` of ${showBytes(device.memory)}` : ""}`];
  }
  function csv() {
    const { devices, busy, held, range } = shown, at = (part) => ((part + 0.5) / PARTS) * (range[1] - range[0]);
    return [["device", "seconds since the start", "share busy", "bytes held"], ...devices.flatMap((device, number) => Array.from(busy[number], (share, part) => [device.name, at(part), share, held[number][part]]))];
  }

  function update() {
    const bars = measuredBars(), devices = state.data.devices.slice(0, MOST_DEVICES), range = timeRange(bars);
    const used = cluster?.loads.length ? [...loadBars(cluster.loads), ...bars.filter((bar) => bar.outcome === "running")] : bars;
    shown = { devices, range, busy: busyOverTime(used, devices.map((device) => device.name), ...range, PARTS), held: devices.map((device) => bytesOverTime(used, device.name, ...range, PARTS)) };
    lanes.hidden = !devices.length;
    if (devices.length) chart.draw();
    fill(table, deviceTable(bars));
    fill(queue, waiting(bars), shares(bars));
    redraw(hardware, cluster, () => fill(hardware, links()));
  }

  function deviceTable(bars) {
    const { devices } = state.data;
    if (!devices.length) return section("Devices", note("No device is known yet: nothing has run on this store."));
    const running = new Map(bars.filter((bar) => bar.outcome === "running").flatMap((bar) => bar.devices.map((device) => [device, bar])));
    const rows = devices.slice(0, MOST_DEVICES).map((device, number) => {
      const bar = running.get(device.name), mean = shown.busy[number] ? shown.busy[number].reduce((sum, share) => sum + share, 0) / PARTS : 0;
      return [device.name, device.kind ?? "", device.away ? element("span", { class: "chip away" }, `▲ away: ${device.away}`) : bar ? element("span", {}, chip("running"), " ", taskLink(bar.ids[0]), bar.ids.length > 1 ? ` + ${bar.ids.length - 1}` : "") : "idle", showShare(mean), bar ? showBytes(bar.bytes) : "–", showBytes(device.memory), device.price ? `${device.price} an hour` : ""];
    });
    const priced = devices.some((device) => device.price), heads = [["Device", "short"], ["Kind", ""], ["Now", ""], ["Busy since the start", "number"], ["Holds", "number"], ["Memory", "number"], ["Price", "number"]];
    return section("Devices", plainTable("Devices", priced ? heads : heads.slice(0, -1), priced ? rows : rows.map((cells) => cells.slice(0, -1))), devices.length > MOST_DEVICES ? note(`Shown are ${MOST_DEVICES} of ${devices.length}.`) : null);
  }

  // Who had how much of the devices' time, where that is shared among several.
  function shares(bars) {
    const names = [["entity", "entity"], ["workload", "workload"]].find(([key]) => new Set(state.rows.map((row) => row[key] ?? "")).size > 1);
    if (!names && !plan?.shares?.length) return null;
    const spent = new Map();
    let whole = 0;
    for (const bar of bars) {
      const seconds = ((bar.end ?? state.now) - bar.start) * bar.devices.length, who = names ? state.tasks.get(bar.ids[0])?.[names[0]] || "none" : "all";
      spent.set(who, (spent.get(who) ?? 0) + seconds);
      whole += seconds;
    }
    const rows = [...spent].sort(([, a], [, b]) => b - a).slice(0, 50).map(([who, seconds]) => [who, showSeconds(seconds), showShare(seconds / (whole || 1))]);
    const due = (plan?.shares ?? []).slice(0, 50).map(([ids, technique, kind, count, share]) => [ids.slice(0, 4).map((id) => state.name(id)).join(", "), technique, `${count} × ${kind}`, showNumber(share)]);
    return section("Shares", names ? plainTable(`Device time by ${names[1]}`, [[names[1], ""], ["Device time", "number"], ["Share", "number"]], rows) : null,
      due.length ? plainTable("Shares that are due", [["Tasks", ""], ["Technique", ""], ["Devices", "short"], ["Gangs at once", "number"]], due) : null);
  }

  // Who waits, in planned order, for which devices, and who holds those.
  function waiting(bars) {
    const rows = state.rows.filter((row) => ["pending", "paused", "resting"].includes(row.status) && !row.former);
    if (!rows.length) return section("Queue", note("No task waits."));
    const planned = new Map(plannedBars(plan).flatMap((bar) => bar.ids.map((id) => [id, bar]))), running = bars.filter((bar) => bar.outcome === "running");
    const start = (row) => planned.get(row.id)?.start ?? Infinity, order = [...rows].sort((a, b) => start(a) - start(b)), free = new Map();
    for (const bar of running) for (const device of bar.devices) free.set(device, Math.max(bar.start + bar.predicted, state.now));
    let ahead = 0;
    const lines = order.slice(0, MOST_QUEUED).map((row) => {
      const bar = planned.get(row.id);
      if (row.status !== "pending" || !bar) return [taskLink(row.id), chip(row.status), "", "", reasonOf(row)];
      const held = running.filter((other) => other.devices.some((device) => bar.devices.includes(device))), begins = Math.max(state.now, ...bar.devices.map((device) => free.get(device) ?? state.now));
      for (const device of bar.devices) free.set(device, begins + bar.predicted);
      const why = held.length ? `${bar.devices.join(", ")} taken by ${held.map((other) => state.name(other.ids[0])).slice(0, 3).join(", ")}` : state.data.controller ? `${bar.devices.join(", ")} free for it soon` : "nothing runs now";
      ahead += 1;
      return [taskLink(row.id), chip(row.status), state.data.controller ? showSeconds(begins - state.now) : "–", showSeconds(bar.predicted), `${why}; ${ahead === 1 ? "it is next" : `${plural(ahead - 1, "task")} before it`}`];
    });
    return section("Queue", plainTable("Queue", [["Task", ""], ["Status", "short"], ["Starts in", "number"], ["Takes", "number"], ["Why it waits", "prose"]], lines), order.length > MOST_QUEUED ? note(`And ${order.length - MOST_QUEUED} more.`) : null);
  }

  const reasonOf = (row) => ({ paused: `paused by a user at step ${showNumber(row.step)}`, resting: "at a rung of halving, until the others have reached it" })[row.status] ?? (row.family ? row.reason || "not in the last plan; the next one is about to be made" : "new: its program is to be built and measured first");

  function links() {
    if (!cluster) return null;
    const rate = (value, unit) => (value ? `${showBytes(value)}${unit}` : "not measured");
    const kinds = cluster.kinds.map((kind) => [kind.name, showNumber(kind.count), kind.memory ? showBytes(kind.memory) : "the host's", kind.flops ? `${(kind.flops / 1e9).toFixed(1)} GFLOP/s` : "not measured", rate(kind.memory_rate, "/s"), kind.price ? `${kind.price} an hour` : "–"]);
    const found = [section("Kinds and nodes", plainTable("Kinds", [["Kind", ""], ["Devices", "number"], ["Memory", "number"], ["Matrix", "number"], ["Memory rate", "number"], ["Price", "number"]], kinds), ...cluster.nodes.slice(0, 50).map((node) => note(`${node.name}: ${node.cores} cores, ${showBytes(node.memory)} of memory`)))];
    if (cluster.links.length) found.push(section("Links", plainTable("Links", [["From", ""], ["To", ""], ["Rate", "number"], ["Latency", "number"]], cluster.links.slice(0, 200).map((link) => [link.source, link.target, rate(link.rate, "/s"), showSeconds(link.latency)]))));
    return found;
  }

  // What was measured of orders is asked for once more of them have ended, but not for each of thousands.
  let ended = 0, due = null;
  const endedNow = () => measuredBars().filter((bar) => bar.outcome !== "running").length;
  async function load() {
    due = null;
    ended = endedNow();
    cluster = await state.ask("cluster").catch(() => null);
    const number = state.data.plans.at(-1)?.[0];
    plan = number === undefined || plan?.number === number ? plan : await state.ask("plan", { number }).catch(() => null);
    update();
  }
  update();
  load();
  return { update() { if (state.data.plans.at(-1)?.[0] !== plan?.number || endedNow() !== ended) due ??= setTimeout(() => table.isConnected && load(), 1000 * LOADS_SECONDS); update(); }, resize: update };
}
