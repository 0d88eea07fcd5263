// What can be asked of the controller. What cannot be taken back is asked for twice; the controller's answer is shown.
import { element, showNumber } from "./text.js";
import { state } from "./state.js";
import { button } from "./controls.js";

/** A dialog with fields, which asks on `wanted(fields)` and shows the answer. */
function ask(title, text, fields, { verb, wanted, danger = false }) {
  const answer = element("p", { class: "answer", role: "status", "aria-live": "polite" });
  const send = element("button", { type: "submit", class: danger ? "danger" : "main" }, verb);
  const close = button("Close", () => dialog.close());
  const form = element("form", { method: "dialog" }, element("h2", { id: "asked" }, title), text ? element("p", {}, text) : null, ...fields.map((field) => field.node), answer, element("div", { class: "buttons" }, close, send));
  const dialog = element("dialog", { "aria-labelledby": "asked" }, form);
  form.addEventListener("submit", async (event) => {
    event.preventDefault();
    send.disabled = true;
    answer.className = "answer";
    answer.textContent = "The controller is asked…";
    try {
      const values = Object.fromEntries(fields.map((field) => [field.name, field.read()]));
      const found = await state.act(wanted(values));
      answer.className = "answer good";
      answer.textContent = `The controller says: ${found.done}.`;
      send.hidden = true;
    } catch (error) {
      answer.className = "answer bad";
      answer.textContent = error.message;
      send.disabled = false;
    }
  });
  dialog.addEventListener("close", () => dialog.remove());
  document.body.append(dialog);
  dialog.showModal();
}

function text(name, title, value = "", read = (given) => given) {
  const input = element("input", { name, type: "text", value, autocomplete: "off" });
  return { name, node: element("label", {}, title, input), read: () => read(input.value.trim()) };
}

function area(name, title, value, read) {
  const input = element("textarea", { name, rows: 6, spellcheck: "false" });
  input.value = value;
  return { name, node: element("label", {}, title, input), read: () => read(input.value) };
}

function tick(name, title, isOn) {
  const input = element("input", { name, type: "checkbox" });
  input.checked = isOn;
  return { name, node: element("label", { class: "inline" }, input, title), read: () => input.checked };
}

const number = (given) => {
  const found = Number(given);
  if (given === "" || !Number.isFinite(found)) throw new Error(`A number must be given, got “${given}”.`);
  return found;
};
// Numbers, true, null and lists as in JSON, else text, as on the command line.
const value = (given) => { try { return JSON.parse(given); } catch { return given; } };

/** Seconds of a time such as 90s, 5min, 2h or 1d. */
export function parseSeconds(given) {
  const found = /^([\d.]+)\s*(s|min|h|d)?$/.exec(given.trim());
  if (!found) throw new Error(`A time must be given such as 90s, 5min, 2h or 1d, got “${given}”.`);
  return Number(found[1]) * { s: 1, min: 60, h: 3600, d: 86400 }[found[2] ?? "s"];
}

/** Lines of name = value. */
function parameters(given, read) {
  const found = {};
  for (const line of given.split("\n")) {
    const [name, ...rest] = line.split("=");
    if (!line.trim()) continue;
    if (!rest.length || !name.trim()) throw new Error(`Each line must be a name and a value, as in rate=0.1; got “${line}”.`);
    found[name.trim()] = read(rest.join("=").trim());
  }
  return found;
}

export const stopButton = () => button("Stop all…", () => ask("Stop everything?", "Everything is saved, then the controller stops. To go on, run the same command again in a terminal: this page cannot start one.", [], { verb: "Save and stop", danger: true, wanted: () => ({ do: "stop" }) }), "danger");

/** The buttons of one task, as far as its status allows. */
export function taskActions(row) {
  const { id, name, status } = row, isOver = ["finished", "halved", "pruned", "failed", "cancelled"].includes(status);
  const simple = (verb, title, words, danger) => button(title, () => ask(`${title} ${name}?`, words, [], { verb: title, danger, wanted: () => ({ do: verb, id }) }), danger ? "danger" : "");
  const found = [];
  if (!isOver && status !== "paused" && row.stopping !== "pause") found.push(simple("pause", "Pause", "It is saved and kept out of plans until it is resumed."));
  if (status === "paused" || row.stopping === "pause" || status === "failed" || status === "cancelled") found.push(simple("resume", "Resume", status === "paused" ? "It goes on from where it was saved." : "It is tried again from where it was last saved."));
  if (!isOver) found.push(simple("cancel", "Cancel", "It is saved and ended; what waits on its devices comes sooner. It can be resumed from its last checkpoint.", true), priority(row), deadline(row));
  return [...found, clone(row), more(row)];
}

const priority = (row) => button("Priority…", () => ask(`How much should ${row.name} count?`, "1 is usual, 2 counts twice.", [text("priority", "Priority", String(row.priority ?? 1), number)], { verb: "Set", wanted: (given) => ({ do: "priority", id: row.id, ...given }) }));

const deadline = (row) => button("Deadline…", () => ask(`When should ${row.name} have ended?`, row.deadline ? "It has a deadline already; nothing at all takes that back." : "", [text("deadline_seconds", "From now, such as 2h", "", (given) => (given ? parseSeconds(given) : null))], { verb: "Set", wanted: (given) => ({ do: "deadline", id: row.id, ...given }) }));

function clone(row) {
  const given = Object.entries(row.given).map(([name, each]) => `${name}=${each}`).join("\n");
  const changed = (now) => Object.fromEntries(Object.entries(now).filter(([name, each]) => JSON.stringify(each) !== JSON.stringify(row.given[name])));
  return button("Clone…", () => ask(`A copy of ${row.name}`, "Change what is to be other; a daemon takes it on as a new task.", [
    area("parameters", "Parameters, one a line", given, (now) => changed(parameters(now, value))), text("name", "Name (left empty, one that says what differs)"), tick("warm", "Begin with the weights that it saved last", Boolean(row.saved)),
  ], { verb: "Clone", wanted: (fields) => ({ do: "clone", id: row.id, ...fields }) }));
}

function more(row) {
  const lists = (text) => text.split(",").map((each) => each.trim()).filter(Boolean).map(value).flatMap((each) => (typeof each === "string" && /^-?\d+\.\.-?\d+$/.test(each) ? range(each) : [each]));
  const range = (each) => { const [from, to] = each.split("..").map(Number); return Array.from({ length: Math.min(to - from + 1, 1000) }, (_, place) => from + place); };
  return button("Add seeds or a grid…", () => ask(`More tasks of ${row.program}`, `All combinations of these values; what is not named is as in ${row.name}. A daemon takes them on.`, [
    area("grid", "Values, one parameter a line: seed=1..4 or rate=0.1, 0.01", `seed=${Number(row.given.seed ?? 0) + 1}..${Number(row.given.seed ?? 0) + 3}`, (now) => parameters(now, lists)),
    text("deadline_seconds", "Deadline from now, such as 2h (left empty: none)", "", (given) => (given ? parseSeconds(given) : null)), text("priority", "Priority", "1", number),
  ], { verb: "Submit", wanted: (fields) => ({ do: "add", id: row.id, ...fields }) }));
}

/** A button that asks the controller once why a task waits, and shows what it says. */
export function whyButton(row) {
  const said = element("p", { class: "note", role: "status" });
  const asked = button("Ask the controller", async () => {
    said.textContent = "The controller is asked…";
    said.textContent = await state.act({ do: "why", id: row.id }).then((found) => found.done, (error) => error.message);
  });
  return element("span", {}, asked, said);
}

export const describePriority = (row) => (row.priority ? showNumber(row.priority) : "1");
