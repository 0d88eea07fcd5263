// Where one is: the view and all that was chosen in it stand in the address, so that a link shows the same again.

export function here() {
  const [path, words = ""] = location.hash.replace(/^#\/?/, "").split("?");
  return { view: path || "overview", chosen: new URLSearchParams(words) };
}

export function addressOf(view, chosen = {}) {
  const words = new URLSearchParams();
  const pairs = chosen instanceof URLSearchParams ? [...chosen] : Object.entries(chosen);
  for (const [name, value] of pairs) if (value !== null && value !== undefined && value !== "" && value !== false) words.append(name, value);
  const text = words.toString();
  return `#/${view}${text ? `?${text}` : ""}`;
}

/** Note what was chosen in this view, without a step back in the browser's history. */
export function keepChosen(changes) {
  const { view, chosen } = here();
  for (const [name, value] of Object.entries(changes)) {
    if (value === null || value === undefined || value === "" || value === false) chosen.delete(name);
    else chosen.set(name, value);
  }
  history.replaceState(null, "", addressOf(view, chosen));
}

export const goTo = (view, chosen) => { location.hash = addressOf(view, chosen); };
