// What views are steered with: choices, boxes, sliders. Each notes itself in the address.
import { element } from "./text.js";
import { here, keepChosen } from "./route.js";

/** A select whose choice is kept in the address under `name`; options are [value, text]. */
export function choice(name, title, options, changed, fallback = options[0]?.[0] ?? "") {
  const wanted = here().chosen.get(name) ?? fallback;
  const made = element("select", { name, onchange: () => { keepChosen({ [name]: made.value }); changed(made.value); } });
  const set = (choices, value) => {
    made.replaceChildren(...choices.map(([each, text]) => element("option", { value: each }, text)));
    made.value = choices.some(([each]) => String(each) === String(value)) ? value : choices[0]?.[0] ?? "";
  };
  set(options, wanted);
  return { node: element("label", {}, `${title} `, made), get value() { return made.value; }, set };
}

export function box(name, title, changed, fallback = false) {
  const kept = here().chosen.get(name);
  const made = element("input", { type: "checkbox", name, onchange: () => { keepChosen({ [name]: made.checked ? "1" : fallback ? "0" : "" }); changed(made.checked); } });
  made.checked = kept === null ? fallback : kept === "1";
  return { node: element("label", {}, made, ` ${title}`), get value() { return made.checked; }, input: made };
}

export function slider(name, title, { least, most, step, fallback }, changed) {
  const made = element("input", { type: "range", name, min: least, max: most, step, oninput: () => { keepChosen({ [name]: made.value }); changed(Number(made.value)); } });
  made.value = here().chosen.get(name) ?? fallback;
  return { node: element("label", {}, `${title} `, made), get value() { return Number(made.value); }, input: made };
}

export function search(name, title, changed) {
  let timer = null;
  const made = element("input", { type: "search", name, "aria-label": title, placeholder: title, oninput: () => {
    clearTimeout(timer);
    timer = setTimeout(() => { keepChosen({ [name]: made.value }); changed(made.value); }, 80);
  } });
  made.value = here().chosen.get(name) ?? "";
  return { node: made, get value() { return made.value; }, set value(text) { made.value = text; } };
}

export const button = (title, act, kind = "") => element("button", { type: "button", class: kind || undefined, onclick: act }, title);
