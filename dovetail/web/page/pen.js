// One drawing for the screen and for the file: a chart is drawn with a pen, which puts it on a canvas or writes it as SVG.
import { element } from "./text.js";
import { themeColour } from "./palette.js";

export class CanvasPen {
  constructor(canvas, width, height) {
    const ratio = window.devicePixelRatio || 1;
    canvas.width = Math.round(width * ratio);
    canvas.height = Math.round(height * ratio);
    canvas.style.width = `${width}px`;
    canvas.style.height = `${height}px`;
    this.context = canvas.getContext("2d");
    this.context.setTransform(ratio, 0, 0, ratio, 0, 0);
    this.context.clearRect(0, 0, width, height);
    this.family = getComputedStyle(document.body).fontFamily;
  }

  rect(x, y, width, height, { fill, stroke, hatch, alpha = 1 }) {
    const { context } = this;
    context.globalAlpha = alpha;
    if (fill) { context.fillStyle = fill; context.fillRect(x, y, width, height); }
    if (stroke) { context.strokeStyle = stroke; context.lineWidth = 1; context.strokeRect(x + 0.5, y + 0.5, Math.max(width - 1, 0.5), height - 1); }
    if (hatch && width > 4) {
      context.save();
      context.beginPath(); context.rect(x, y, width, height); context.clip();
      context.strokeStyle = hatch; context.globalAlpha = 0.25; context.lineWidth = 1.5; // faint, so that names stay readable
      context.beginPath();
      const right = Math.min(x + width, context.canvas.width + height);
      for (let at = Math.max(x, 0) - height; at < right; at += 8) { context.moveTo(at, y + height); context.lineTo(at + height, y); }
      context.stroke(); context.restore();
    }
    context.globalAlpha = 1;
  }

  line(points, { stroke, width = 1, dash = [], alpha = 1 }) {
    const { context } = this;
    context.globalAlpha = alpha;
    context.strokeStyle = stroke; context.lineWidth = width; context.setLineDash(dash);
    context.beginPath();
    let isDown = false;
    for (const point of points) {
      if (point === null) { isDown = false; continue; }
      if (isDown) context.lineTo(point[0], point[1]); else context.moveTo(point[0], point[1]);
      isDown = true;
    }
    context.stroke(); context.setLineDash([]); context.globalAlpha = 1;
  }

  circle(x, y, radius, { fill, stroke, alpha = 1 }) {
    const { context } = this;
    context.globalAlpha = alpha;
    context.beginPath(); context.arc(x, y, radius, 0, 2 * Math.PI);
    if (fill) { context.fillStyle = fill; context.fill(); }
    if (stroke) { context.strokeStyle = stroke; context.stroke(); }
    context.globalAlpha = 1;
  }

  text(x, y, text, { fill, size = 12, align = "left", most = Infinity, turn = 0 }) {
    const { context } = this;
    context.font = `${size}px ${this.family}`; context.fillStyle = fill; context.textAlign = align; context.textBaseline = "middle";
    const shown = this.fitted(text, most);
    if (!shown) return;
    if (!turn) { context.fillText(shown, x, y); return; }
    context.save(); context.translate(x, y); context.rotate((turn * Math.PI) / 180); context.fillText(shown, 0, 0); context.restore();
  }

  // As much of a text as there is room for; measuring each would take longer than drawing.
  fitted(text, most) {
    if (most === Infinity) return text;
    const letters = Math.floor(most / 6.4);
    return letters < 3 ? "" : text.length <= letters ? text : `${text.slice(0, letters - 1)}…`;
  }
}

const escaped = (text) => String(text).replace(/[&<>"']/g, (letter) => `&#${letter.charCodeAt(0)};`);
// What XML cannot hold at all.
const written = (text) => escaped(String(text).replace(/[\u0000-\u0008\u000b\u000c\u000e-\u001f\ufffe\uffff]/g, "�"));
const short = (number) => String(Math.round(number * 100) / 100);

export class SvgPen {
  constructor(width, height) {
    this.parts = [`<svg xmlns="http://www.w3.org/2000/svg" width="${short(width)}" height="${short(height)}" viewBox="0 0 ${short(width)} ${short(height)}" font-family="sans-serif">`,
      `<rect width="100%" height="100%" fill="${themeColour("panel")}"/>`];
  }

  rect(x, y, width, height, { fill, stroke, hatch, alpha = 1 }) {
    const about = `x="${short(x)}" y="${short(y)}" width="${short(Math.max(width, 0.1))}" height="${short(height)}" opacity="${alpha}"`;
    this.parts.push(`<rect ${about} fill="${fill ?? "none"}"${stroke ? ` stroke="${stroke}"` : ""}${hatch ? ` stroke="${hatch}" stroke-dasharray="3 2"` : ""}/>`);
  }

  line(points, { stroke, width = 1, dash = [], alpha = 1 }) {
    let path = "", isDown = false;
    for (const point of points) {
      if (point === null) { isDown = false; continue; }
      path += `${isDown ? "L" : "M"}${short(point[0])} ${short(point[1])}`;
      isDown = true;
    }
    const dashed = dash.length ? ` stroke-dasharray="${dash.join(" ")}"` : "";
    this.parts.push(`<path d="${path}" fill="none" stroke="${stroke}" stroke-width="${width}" opacity="${alpha}"${dashed}/>`);
  }

  circle(x, y, radius, { fill, stroke, alpha = 1 }) {
    this.parts.push(`<circle cx="${short(x)}" cy="${short(y)}" r="${radius}" fill="${fill ?? "none"}"${stroke ? ` stroke="${stroke}"` : ""} opacity="${alpha}"/>`);
  }

  text(x, y, text, { fill, size = 12, align = "left", most = Infinity, turn = 0 }) {
    const anchor = { left: "start", center: "middle", right: "end" }[align];
    const shown = CanvasPen.prototype.fitted(text, most);
    const turned = turn ? ` transform="rotate(${turn} ${short(x)} ${short(y)})"` : "";
    if (shown) this.parts.push(`<text x="${short(x)}" y="${short(y + size / 3)}" font-size="${size}" fill="${fill}" text-anchor="${anchor}"${turned}>${written(shown)}</text>`);
  }

  get result() { return `${this.parts.join("\n")}\n</svg>\n`; }
}

export function download(name, type, content) {
  const address = URL.createObjectURL(new Blob([content], { type }));
  element("a", { href: address, download: name }).click();
  setTimeout(() => URL.revokeObjectURL(address), 10_000);
}

// A cell that begins as a formula would be run by whoever opens the file in a spreadsheet.
const cell = (value) => {
  const text = value === null || value === undefined ? "" : String(value);
  const safe = typeof value === "string" && /^[=+\-@\t\r]/.test(text) ? `'${text}` : text;
  return /[",\n]/.test(safe) ? `"${safe.replaceAll('"', '""')}"` : safe;
};
export const csvOf = (rows) => rows.map((row) => row.map(cell).join(",")).join("\n") + "\n";

/** Two buttons under a chart: `draw(pen, width, height)` draws it, `rows()` gives its data, the names first. */
export function downloads(name, { size, draw, rows }) {
  const save = (kind) => {
    if (kind === "CSV") { download(`${name}.csv`, "text/csv", csvOf(rows())); return; }
    const [width, height] = size(), pen = new SvgPen(width, height);
    draw(pen, width, height);
    download(`${name}.svg`, "image/svg+xml", pen.result);
  };
  return element("span", { class: "downloads" }, ["SVG", "CSV"].map((kind) =>
    element("button", { type: "button", class: "quiet", "aria-label": `Download ${name} as ${kind}`, onclick: () => save(kind) }, kind)));
}
