// A table of thousands of rows of which only those in sight are elements: scrolling makes a few dozen, and no more.
import { element } from "./text.js";

const HEIGHT = 33, AHEAD = 8;

/** A virtual table: `columns` are {title, kind, width, cell(item), sort}, `items` are shown in their order. */
export class VirtualTable {
  constructor(container, { label, onSort, onRange }) {
    this.body = element("tbody", {});
    this.head = element("tr", {});
    this.groups = element("colgroup", {});
    this.table = element("table", { "aria-label": label }, this.groups, element("thead", {}, this.head), this.body);
    this.node = element("div", { class: "rows", tabindex: "0", role: "region", "aria-label": `${label}, scrollable` }, this.table);
    this.onSort = onSort; this.onRange = onRange;
    this.items = []; this.columns = []; this.first = -1; this.last = -1;
    this.node.addEventListener("scroll", () => this.draw(), { passive: true });
    container.append(this.node);
  }

  setColumns(columns, sort) {
    this.columns = columns;
    this.groups.replaceChildren(...columns.map((column) => element("col", { style: { width: column.width } })));
    this.table.style.minWidth = `${columns.reduce((sum, column) => sum + parseInt(column.width, 10), 0)}px`;
    this.head.replaceChildren(...columns.map((column) => {
      const name = column.key, direction = sort === name ? "ascending" : sort === `-${name}` ? "descending" : undefined;
      const title = name ? element("button", { type: "button", onclick: () => this.onSort(sort === name ? `-${name}` : name) }, column.title) : column.title;
      return element("th", { scope: "col", class: column.kind || undefined, "aria-sort": direction, title: column.title || undefined }, title || element("span", { class: "unseen" }, "Select"));
    }));
    this.first = -1;
  }

  setItems(items) {
    this.items = items;
    this.table.setAttribute("aria-rowcount", items.length + 1);
    this.first = -1;
    this.draw();
  }

  refresh() { this.first = -1; this.draw(); }

  draw() {
    const first = Math.max(0, Math.floor(this.node.scrollTop / HEIGHT) - AHEAD);
    const last = Math.min(this.items.length, Math.ceil((this.node.scrollTop + this.node.clientHeight) / HEIGHT) + AHEAD);
    if (first === this.first && last === this.last) return;
    this.first = first; this.last = last;
    const space = (count) => element("tr", { class: "space", "aria-hidden": "true" }, element("td", { colspan: this.columns.length, style: { height: `${count * HEIGHT}px` } }));
    const shown = this.items.slice(first, last);
    const focused = document.activeElement?.closest?.("tr")?.dataset.row;
    this.body.replaceChildren(space(first), ...shown.map((item, place) => this.row(item, first + place)), space(this.items.length - last));
    if (focused !== undefined) this.body.querySelector(`tr[data-row="${CSS.escape(focused)}"] a`)?.focus();
    this.onRange?.(shown);
  }

  row(item, place) {
    if (item.group !== undefined) return element("tr", { class: "group", "aria-rowindex": place + 2 }, element("td", { colspan: this.columns.length }, item.group));
    return element("tr", { "aria-rowindex": place + 2, "data-row": item.id }, this.columns.map((column) => element("td", { class: column.kind || undefined }, column.cell(item) ?? "")));
  }
}
