// The schedule: planned and measured, through all plans that are kept, with what changed from one to the next and why.
import { element, fill, note, plainTable, plural, showBytes, showMoment, showNumber, showSeconds } from "./text.js";
import { state } from "./state.js";
import { goTo } from "./route.js";
import { button, slider } from "./controls.js";
import { Gantt } from "./gantt.js";
import { measuredBars, plannedBars } from "./bars.js";
import { predictionChart } from "./predictions.js";
import { folded, list, redraw, section, storeWord } from "./parts.js";

const FOLDED_ABOVE = 12, MOST_CHANGES = 30;

export function scheduleView(container) {
  const plans = () => state.data.plans, last = () => plans().length - 1;
  let plan = null, follows = true, asked = 0;
  const about = element("p", { class: "note", role: "status" }), why = element("div", {}), predictions = element("section", {});
  const panel = element("section", {}, element("h2", {}, "Schedule"));
  const chosen = slider("plan", "Plan", { least: 0, most: Math.max(last(), 0), step: 1, fallback: Math.max(last(), 0) }, (place) => { follows = place === last(); load(place); });
  const gantt = new Gantt(element("div", {}), { onOpen: (id) => goTo("task", { id, ...storeWord() }) });
  panel.append(
    element("div", { class: "controls" }, chosen.node, button("−", () => gantt.zoom(1.4)), button("+", () => gantt.zoom(1 / 1.4)), button("All", () => gantt.look(null)),
      element("span", { class: "keys" }, ...[["outline", "planned"], ["filled", "measured"], ["hatched", "running or interrupted"]].map(([kind, text]) => element("span", { class: "key" }, element("i", { class: kind }), text))), gantt.downloads),
    gantt.chart, note("Drag to move; hold Ctrl or Shift and turn the wheel, or pinch, to zoom; a click opens the task."), about);
  container.append(panel, predictions, why);
  const buttons = panel.querySelectorAll(".controls > button");
  ["Zoom out", "Zoom in", "Show all"].forEach((text, place) => buttons[place].setAttribute("aria-label", text));

  async function load(place) {
    const number = plans()[place]?.[0], mine = ++asked;
    if (number === undefined) { plan = null; draw(); return; }
    try {
      const found = await state.ask("plan", { number });
      const before = await earlier(place);
      if (mine === asked) { plan = { ...found, before, place }; draw(); }
    } catch (error) { if (mine === asked) { plan = { number, place, placements: [], explanation: [], rejections: [], kept: false, error: error.message }; draw(); } }
  }

  // The plan before this one of which all is kept.
  async function earlier(place) {
    for (let at = place - 1; at >= Math.max(0, place - 8); at -= 1) {
      const found = await state.ask("plan", { number: plans()[at][0] }).catch(() => null);
      if (found?.placements?.length) return found;
    }
    return null;
  }

  function draw() {
    chosen.node.hidden = plans().length < 2;
    chosen.input.max = Math.max(last(), 0);
    const devices = state.data.devices.map((device) => device.name);
    const planned = plannedBars(plan), extra = planned.flatMap((bar) => bar.devices).filter((device) => !devices.includes(device));
    gantt.show([...devices, ...new Set(extra)], measuredBars(), planned);
    about.textContent = plans().length ? described() : "Nothing has been planned yet.";
    redraw(why, [plan?.number, plan?.kept, state.tasks.size], () => fill(why, plan ? [changes(), explanation(), shares(), rejections()] : null));
    redraw(predictions, [state.data.comparison, innerWidth], () => predictionChart(predictions));
  }

  function described() {
    const at = plan?.place ?? last(), [number, moment, makespan, bound, because] = plans()[at];
    const gap = bound > 0 ? ` Nothing can take less than ${showSeconds(bound)}, so it is at most ${Math.round(100 * Math.max(makespan / bound - 1, 0))}% longer than need be.` : "";
    const kept = plan && !plan.kept ? " Of plans between the first and the last ones only that they were made is kept." : "";
    const length = makespan ? ` It takes ${showSeconds(makespan)}.` : "";
    return `Plan ${number} of ${state.data.plans_made}, made ${showMoment(moment)}${because ? `, because ${because}` : ""}.${length}${makespan ? gap : ""}${kept}`;
  }

  function changes() {
    if (!plan.before || !plan.placements.length) return null;
    const where = (found) => new Map(found.placements.flatMap(([ids, , devices, start, , technique]) => ids.map((id) => [id, { devices: devices.join(", "), technique, start }])));
    const was = where(plan.before), is = where(plan), lines = [];
    for (const [id, now] of is) {
      const then = was.get(id);
      if (!then) lines.push(`${state.name(id)} came: ${now.technique} on ${now.devices}`);
      else if (then.devices !== now.devices || then.technique !== now.technique) lines.push(`${state.name(id)}: from ${then.technique} on ${then.devices} to ${now.technique} on ${now.devices}`);
    }
    const gone = [...was.keys()].filter((id) => !is.has(id));
    if (gone.length) lines.push(`${plural(gone.length, "task")} of plan ${plan.before.number} ${gone.length === 1 ? "is" : "are"} not in it any more: started, ended or taken back`);
    const because = plans()[plan.place][4];
    return section(`What changed since plan ${plan.before.number}`, because ? note(`Because ${because}.`) : null, lines.length ? list(lines.slice(0, MOST_CHANGES)) : note("No task changed its place."), lines.length > MOST_CHANGES ? note(`And ${lines.length - MOST_CHANGES} more.`) : null);
  }

  function explanation() {
    if (!plan.explanation.length) return null;
    const lines = list(plan.explanation), more = plan.more_lines ? note(`And ${plan.more_lines} more.`) : null;
    return section("Why this plan", plan.explanation.length > FOLDED_ABOVE ? folded(`${plan.explanation.length} lines of explanation`, lines) : lines, more);
  }

  function shares() {
    if (!plan.shares?.length) return null;
    const rows = plan.shares.map(([ids, technique, kind, count, share]) => [ids.slice(0, 5).map((id) => state.name(id)).join(", ") + (ids.length > 5 ? ` and ${ids.length - 5} more` : ""), technique, `${count} × ${kind}`, showNumber(share)]);
    return section("Shares of time", plainTable("Shares of time", [["Tasks", ""], ["Technique", ""], ["Devices", "short"], ["Gangs at once", "number"]], rows));
  }

  function rejections() {
    if (!plan.rejections.length) return null;
    const rows = plan.rejections.map((each) => [each.tasks.slice(0, 4).map((id) => state.name(id)).join(", ") + (each.tasks.length > 4 ? ` and ${each.tasks.length - 4} more` : ""), each.technique, `${each.count} × ${each.kind}`, showBytes(each.needed), showBytes(each.free), each.reason]);
    const table = plainTable("What does not fit", [["Tasks", ""], ["Technique", ""], ["Devices", "short"], ["Needs", "number"], ["Free", "number"], ["Reason", "prose"]], rows);
    return section("What does not fit", rows.length > FOLDED_ABOVE ? folded(`${rows.length} options`, table) : table);
  }

  load(Math.min(chosen.value, last()));
  const clock = setInterval(() => { if (!state.isFrozen && !document.hidden) gantt.draw(); }, 1000);
  return {
    update() { if (follows && plans().length && plans()[last()][0] !== plan?.number) { chosen.input.max = last(); chosen.input.value = last(); load(last()); } else draw(); },
    resize: () => gantt.draw(),
    close: () => clearInterval(clock),
  };
}
