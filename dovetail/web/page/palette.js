// Colours. Okabe and Ito's for all kinds of colour vision, without black and yellow, which vanish on one of the two
// backgrounds; each with the text colour that is readable on it. What depends on light or dark is the style sheet's.

export const PALETTE = [
  ["#0072B2", "#ffffff"], ["#E69F00", "#1b1b1b"], ["#009E73", "#000000"], ["#CC79A7", "#1b1b1b"],
  ["#56B4E9", "#1b1b1b"], ["#D55E00", "#000000"], ["#8C8C8C", "#000000"],
];
const DASHES = [[], [7, 4], [2, 3], [9, 3, 2, 3], [14, 4]];

export const colourOf = (place) => PALETTE[place % PALETTE.length][0];
export const textOn = (place) => PALETTE[place % PALETTE.length][1];
/** Beyond as many lines as there are colours, dashes tell them apart. */
export const dashOf = (place) => DASHES[Math.floor(place / PALETTE.length) % DASHES.length];

/** A colour of the style sheet, as it is now. */
export const themeColour = (name) => getComputedStyle(document.documentElement).getPropertyValue(`--${name}`).trim();

/** Between two ends by way of grey, for what is worse or better: from orange to blue. */
export function shade(share) {
  const ends = [[213, 94, 0], [140, 140, 140], [0, 114, 178]];
  const at = 2 * Math.min(Math.max(share, 0), 1), from = Math.min(Math.floor(at), 1);
  const mixed = ends[from].map((each, part) => Math.round(each + (at - from) * (ends[from + 1][part] - each)));
  return `rgb(${mixed.join(",")})`;
}

/** Calls back when the machine's theme changes. */
export function onTheme(callback) {
  const query = matchMedia("(prefers-color-scheme: dark)");
  query.addEventListener("change", callback);
  return () => query.removeEventListener("change", callback);
}
