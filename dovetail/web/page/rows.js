// A table of thousands of rows of which only those in sight are elements: scrolling makes a few dozen, and no more. Each row
// lies at its own place and is laid out by itself; as rows of a real table, all were laid out again for each one that came.
import { element } from "./text.js";

const HEIGHT = 33, AHEAD = 8;

/** A virtual table: `columns` are {key, title, kind, width, cell(item)}, `items` are shown in their order. */
export class VirtualTable {
  constructor(container, { label, onSort, onRange }) {
    this.head = element("div", { class: "head line", role: "row", "aria-rowindex": 1 });
    this.body = element("div", { class: "body", role: "rowgroup" });
    this.table = element("div", { class: "table", role: "table", "aria-label": label }, element("div", { class: "top", role: "rowgroup" }, this.head), this.body);
    this.node = element("div", { class: "rows", tabindex: "0", role: "region", "aria-label": `${label}, scrollable` }, this.table);
    this.onSort = onSort; this.onRange = onRange;
    this.items = []; this.columns = []; this.first = -1; this.last = -1;
    this.made = new Map();
    this.node.addEventListener("scroll", () => this.draw(), { passive: true });
    container.append(this.node);
  }

  setColumns(columns, sort) {
    this.columns = columns;
    const wide = columns.reduce((sum, column) => sum + parseInt(column.width, 10), 0);
    this.table.style.setProperty("--columns", columns.map((column) => `minmax(${column.width}, ${parseInt(column.width, 10)}fr)`).join(" "));
    this.table.style.minWidth = `${wide}px`;
    this.head.replaceChildren(...columns.map((column) => {
      const name = column.key, direction = sort === name ? "ascending" : sort === `-${name}` ? "descending" : undefined;
      const title = name ? element("button", { type: "button", onclick: () => this.onSort(sort === name ? `-${name}` : name) }, column.title) : column.title;
      return element("div", { role: "columnheader", class: `cell ${column.kind ?? ""}`, "aria-sort": name ? direction ?? "none" : undefined, title: column.title || undefined }, title || element("span", { class: "unseen" }, "Select"));
    }));
    this.refresh();
  }

  setItems(items) {
    this.items = items;
    this.table.setAttribute("aria-rowcount", items.length + 1);
    this.body.style.height = `${items.length * HEIGHT}px`;
    // Each is at a place of its own, which may be another one now.
    this.made = new Map([...this.made].filter(([item, made]) => items[made.place] === item));
    this.first = -1;
    this.draw();
  }

  refresh() { this.made.clear(); this.first = -1; this.draw(); }

  draw() {
    const top = this.node.scrollTop, first = Math.max(0, Math.floor(top / HEIGHT) - AHEAD);
    this.tall ||= this.node.clientHeight;
    const last = Math.min(this.items.length, Math.ceil((top + this.tall) / HEIGHT) + AHEAD);
    if (first === this.first && last === this.last) return;
    this.first = first; this.last = last;
    const focused = document.activeElement?.closest?.(".line")?.dataset.row, before = this.made;
    this.made = new Map();
    const shown = this.items.slice(first, last);
    shown.forEach((item, place) => this.made.set(item, before.get(item) ?? { place: first + place, node: this.row(item, first + place) }));
    for (const node of [...this.body.children]) if (this.made.get(node.item)?.node !== node) node.remove();
    // In the order in which they are seen, for whoever goes from one to the next.
    let next = this.body.firstChild;
    for (const { node } of this.made.values()) { if (node === next) next = next.nextSibling; else this.body.insertBefore(node, next); }
    if (focused !== undefined && !this.body.contains(document.activeElement)) this.body.querySelector(`[data-row="${CSS.escape(focused)}"] a`)?.focus();
    this.onRange?.(shown);
  }

  row(item, place) {
    const isGroup = item.group !== undefined;
    const cells = isGroup ? [element("div", { role: "cell", class: "cell" }, item.group)] : this.columns.map((column) => element("div", { role: "cell", class: `cell ${column.kind ?? ""}` }, column.cell(item) ?? ""));
    const made = element("div", { role: "row", class: isGroup ? "line group" : "line", "aria-rowindex": place + 2, "data-row": item.id, style: { top: `${place * HEIGHT}px` } }, cells);
    made.item = item;
    return made;
  }

  resize() { this.tall = 0; this.refresh(); }
}
