// Tables that keep their rows, so that focus and selection survive an update; and tables of which the server sends a page.

import { el, exact, setText } from "./dom.js";
import { errorOf, get } from "./api.js";

const classes = (column) => [column.number ? "number" : "text", column.wide ? "wide" : ""].join(" ").trim();

function fill(cell, value) {
  if (value instanceof Node) {
    const old = cell.firstChild;
    if (old && old.nodeName === value.nodeName && old.outerHTML === value.outerHTML && value.nodeName === "A") return;
    if (old && old.textContent === value.textContent && value.nodeName !== "A") return;
    cell.replaceChildren(value);
  } else setText(cell, String(value));
}

export class Table {
  // A column has a title, `show(row)`, and optionally `sort` (its name on the server), `help`, `number`, `wide`.
  constructor(caption, columns, empty = "None.") {
    this.columns = columns;
    this.rows = new Map();
    this.heads = columns.map((column) => el("th", { scope: "col", class: classes(column), title: column.help ?? null }, column.title));
    this.body = el("tbody");
    this.caption = el("caption", {}, caption);
    this.empty = el("p", { class: "empty" }, empty);
    this.table = el("table", {}, this.caption, el("thead", {}, el("tr", {}, ...this.heads)), this.body);
    this.scroll = el("div", { class: "scroll", tabindex: "0", role: "region", "aria-label": caption }, this.table, this.empty);
    this.element = this.scroll;
  }

  show(items, key) {
    const seen = new Set();
    items.forEach((item, at) => {
      const name = key(item);
      seen.add(name);
      let row = this.rows.get(name);
      if (!row) {
        row = el("tr", {}, ...this.columns.map((column) => el("td", { class: classes(column) })));
        this.rows.set(name, row);
      }
      if (this.body.children[at] !== row) this.body.insertBefore(row, this.body.children[at] ?? null);
      this.columns.forEach((column, place) => fill(row.children[place], column.show(item)));
    });
    for (const [name, row] of this.rows) {
      if (!seen.has(name)) { row.remove(); this.rows.delete(name); }
    }
    this.empty.hidden = items.length > 0;
    this.table.hidden = items.length === 0;
  }
}

const remembered = new Map(); // what was searched and sorted, by caption, for as long as the page is open

export class PagedTable extends Table {
  // `path` and `query` name the rows on the server; `key(row)` identifies one. Without `search`, there is no toolbar.
  constructor({ caption, columns, path, query = {}, key, sort, limit = 50, search = true, tools = [], empty = "None." }) {
    super(caption, columns, empty);
    Object.assign(this, { path, query, key, limit });
    this.state = remembered.get(caption) ?? { search: "", sort, offset: 0 };
    if (search) remembered.set(caption, this.state);
    this.number = 0;
    columns.forEach((column, at) => { if (column.sort) this.makeSortable(column, this.heads[at]); });
    this.input = el("input", { type: "search", placeholder: "Search", "aria-label": `Search: ${caption}`, oninput: () => { Object.assign(this.state, { search: this.input.value, offset: 0 }); this.refreshSoon(); } });
    this.input.value = this.state.search;
    this.range = el("span", { class: "quiet", role: "status" });
    this.before = el("button", { type: "button", "aria-label": "Previous page", onclick: () => this.turn(-1) }, "‹ Previous");
    this.after = el("button", { type: "button", "aria-label": "Next page", onclick: () => this.turn(1) }, "Next ›");
    this.pager = el("span", { class: "pager" }, this.before, this.after);
    this.element = search ? el("div", {}, el("div", { class: "tools" }, this.input, ...tools, this.range, this.pager), this.scroll) : this.scroll;
    this.markSorted();
  }

  makeSortable(column, head) {
    const sort = el("button", { type: "button", class: "sort", onclick: () => {
      const down = `-${column.sort}`;
      const first = column.number ? down : column.sort;
      const second = column.number ? column.sort : down;
      Object.assign(this.state, { sort: this.state.sort === first ? second : first, offset: 0 });
      this.markSorted();
      this.refresh();
    } }, column.title);
    head.replaceChildren(sort);
  }

  markSorted() {
    this.columns.forEach((column, at) => {
      const order = !column.sort ? null : this.state.sort === column.sort ? "ascending" : this.state.sort === `-${column.sort}` ? "descending" : null;
      if (order) this.heads[at].setAttribute("aria-sort", order);
      else this.heads[at].removeAttribute("aria-sort");
    });
  }

  turn(pages) {
    this.state.offset = Math.max(0, this.state.offset + pages * this.limit);
    this.refresh();
    this.scroll.focus();
  }

  refreshSoon() {
    clearTimeout(this.timer);
    this.timer = setTimeout(() => this.refresh(), 200);
  }

  async refresh() {
    const number = (this.number += 1);
    const { search, sort, offset } = this.state;
    const answer = await get(this.path, { ...this.query, search, sort, offset, limit: this.limit });
    if (number !== this.number) return; // a newer request is under way
    if (answer.error) {
      this.show([], this.key);
      setText(this.empty, errorOf(answer));
      return;
    }
    if (!answer.rows.length && offset) { this.state.offset = 0; return this.refresh(); }
    this.answer = answer;
    this.onRows?.(answer.rows);
    this.show(answer.rows, this.key);
    const last = offset + answer.rows.length;
    const among = answer.matching === answer.total ? exact(answer.total) : `${exact(answer.matching)} of ${exact(answer.total)}`;
    setText(this.range, answer.matching > answer.rows.length ? `${exact(offset + 1)}–${exact(last)} of ${among}` : among);
    this.before.disabled = offset === 0;
    this.after.disabled = last >= answer.matching;
    this.pager.hidden = answer.matching <= this.limit && offset === 0;
  }
}
