// Words and elements. Text of users goes into pages as text and never as markup: nothing here or elsewhere sets innerHTML.

export const SIGNS = {
  pending: "○", running: "◐", resting: "◌", paused: "‖", finished: "✓", halved: "◒", pruned: "◓", failed: "✕", cancelled: "–",
};
const WHOLE = new Intl.NumberFormat("en");
export const ENDED = new Set(["finished", "halved", "pruned", "failed", "cancelled"]);

/** An element with these attributes, properties (`on...`, `value`, `checked`) and styles, and these children. */
export function element(name, given = {}, ...children) {
  const made = document.createElement(name);
  for (const [key, value] of Object.entries(given)) {
    if (value === undefined || value === null || value === false) continue;
    if (key === "style") Object.entries(value).forEach(([property, each]) => made.style.setProperty(property, each));
    else if (key.startsWith("on") || key === "value" || key === "checked") made[key] = value;
    else made.setAttribute(key, value === true ? "" : value);
  }
  made.append(...children.flat().filter((child) => child !== null && child !== undefined && child !== false));
  return made;
}

/** Put these children in place of whatever an element holds. */
export function fill(container, ...children) {
  container.replaceChildren(...children.flat().filter((child) => child !== null && child !== undefined && child !== false));
}

export function showSeconds(seconds) {
  if (seconds === null || seconds === undefined || !Number.isFinite(seconds)) return "–";
  if (seconds < 0) return `−${showSeconds(-seconds)}`;
  if (seconds < 1e-3) return `${(seconds * 1e6).toFixed(0)} µs`;
  if (seconds < 1) return `${(seconds * 1e3).toPrecision(3)} ms`;
  if (seconds < 60) return `${seconds.toPrecision(3)} s`;
  const minutes = Math.floor(seconds / 60);
  if (minutes < 60) return `${minutes} min ${Math.floor(seconds % 60)} s`;
  const hours = Math.floor(minutes / 60);
  return hours < 48 ? `${hours} h ${minutes % 60} min` : `${Math.floor(hours / 24)} d ${hours % 24} h`;
}

export function showNumber(value) {
  if (value === null || value === undefined) return "";
  if (typeof value !== "number") return String(value);
  if (!Number.isFinite(value)) return String(value);
  if (Number.isInteger(value) && Math.abs(value) < 1e6) return WHOLE.format(value);
  const size = Math.abs(value);
  return size !== 0 && (size < 1e-3 || size >= 1e6) ? value.toExponential(2) : String(Number(value.toPrecision(4)));
}

export function showBytes(count) {
  if (!count) return "–";
  const units = ["B", "KiB", "MiB", "GiB", "TiB"];
  const place = Math.min(Math.floor(Math.log2(count) / 10), units.length - 1);
  return `${(count / 2 ** (10 * place)).toPrecision(3)} ${units[place]}`;
}

export function showShare(share) {
  return share === null || share === undefined ? "–" : `${(100 * share).toFixed(share < 0.1 ? 1 : 0)}%`;
}

// The simulated engine's clock starts at zero; no store is older than this.
const SIMULATED_BELOW = 1e8;

/** A moment in the reader's time zone; seconds of a simulated clock as what they are. */
export function showMoment(seconds) {
  if (seconds === null || seconds === undefined) return "–";
  if (seconds < SIMULATED_BELOW) return `t = ${showSeconds(seconds)}`;
  const two = (number) => String(number).padStart(2, "0");
  const at = new Date(seconds * 1000);
  const day = `${at.getFullYear()}-${two(at.getMonth() + 1)}-${two(at.getDate())}`;
  return `${day} ${two(at.getHours())}:${two(at.getMinutes())}:${two(at.getSeconds())}`;
}

export function shorten(text, most) {
  if (text.length <= most) return text;
  const half = Math.floor((most - 1) / 2);
  return `${text.slice(0, half)}…${text.slice(-half)}`;
}

/** The names without the words that all of them have in common, as long as they still differ as much as before. */
export function distinctWords(names) {
  const words = names.map((name) => name.split(" "));
  if (new Set(names).size < 2) return names;
  let shared = new Set(words[0]);
  for (const each of words) {
    if (!shared.size) return names;
    const own = new Set(each);
    shared = new Set([...shared].filter((word) => own.has(word)));
  }
  const short = words.map((each) => each.filter((word) => !shared.has(word)).join(" "));
  return short.every(Boolean) && new Set(short).size === new Set(names).size ? short : names;
}

export const plural = (count, word) => `${count.toLocaleString("en")} ${word}${count === 1 ? "" : "s"}`;

/** A status with its sign, so that none is told by colour alone. */
export function chip(status) {
  return element("span", { class: `chip ${status}` }, `${SIGNS[status] ?? "•"} ${status.replaceAll("_", " ")}`);
}

/** A table of plain cells; `heads` are [title, class], cells text or elements. */
export function plainTable(caption, heads, rows) {
  const head = heads.map(([title, kind]) => element("th", { scope: "col", class: kind || undefined }, title));
  const body = rows.map((cells) =>
    element("tr", {}, cells.map((cell, place) => element("td", { class: heads[place][1] || undefined }, cell ?? ""))));
  return element("div", { class: "scroll", tabindex: "0", role: "region", "aria-label": caption },
    element("table", {}, element("caption", { class: "unseen" }, caption),
      element("thead", {}, element("tr", {}, head)), element("tbody", {}, body)));
}

export const note = (text) => element("p", { class: "note" }, text);
