// The list of runs: newest first, found by words, chosen by phase.

import { byId, h, pill, since, lasting } from "/dom.js";

const LIVE = ["Running", "Pending"];
const BAD = ["Failed", "Error", "Interrupted", "Unreadable"];
const FILTERS = { all: () => true, live: (run) => LIVE.includes(run.phase), failed: (run) => BAD.includes(run.phase), done: (run) => run.phase === "Succeeded" };
const PAGE = 100;

export class List {
  constructor(onFirst) {
    this.runs = new Map();
    this.places = [];
    this.filter = "all";
    this.most = PAGE;
    this.onFirst = onFirst;
    byId("search").addEventListener("input", () => this.render());
    addEventListener("hashchange", () => this.render());
  }
  on(kind, data) {
    if (kind === "places") {
      this.places = data;
      this.runs.clear();
      this.seen = new Set();
      return;
    }
    if (kind === "trouble") {
      byId("trouble").hidden = !data.text;
      byId("trouble").textContent = data.text;
      return;
    }
    for (const run of data.changed) this.runs.set(`${run.place}/${run.name}`, run);
    for (const name of data.gone) this.runs.delete(`${data.place}/${name}`);
    this.seen.add(data.place);
    this.render();
    this.onFirst(this.sorted(), this.seen.size === this.places.length);
  }
  sorted() {
    return [...this.runs.values()].sort((one, other) => other.began - one.began || one.name.localeCompare(other.name));
  }
  render() {
    const all = this.sorted();
    byId("filters").replaceChildren(...Object.entries(FILTERS).map(([name, fits]) =>
      h("button", { type: "button", "aria-pressed": String(name === this.filter), onclick: () => { this.filter = name; this.most = PAGE; this.render(); } },
        name, h("span", {}, String(all.filter(fits).length)))));
    const words = byId("search").value.toLowerCase().split(/\s+/).filter(Boolean);
    const shown = all.filter(FILTERS[this.filter]).filter((run) => words.every((word) => `${run.place} ${run.name} ${run.title} ${run.line}`.toLowerCase().includes(word)));
    const rows = shown.slice(0, this.most).map((run) => this.row(run));
    if (shown.length > this.most)
      rows.push(h("button", { class: "more", type: "button", onclick: () => { this.most += 10 * PAGE; this.render(); } }, `${shown.length - this.most} older runs`));
    if (!all.length) rows.push(h("p", { class: "empty" }, "No runs yet."));
    else if (!shown.length) rows.push(h("p", { class: "empty" }, "No run fits."));
    byId("runs").replaceChildren(...rows);
  }
  row(run) {
    const address = `#/${encodeURIComponent(run.place)}/${encodeURIComponent(run.name)}`;
    const times = run.ended ? since(run.ended) : run.began ? (LIVE.includes(run.phase) ? lasting(run.began) : since(run.began)) : "";
    return h("a", { class: `run ${run.phase}`, href: address, "aria-current": location.hash === address ? "page" : undefined },
      h("span", { class: "name" }, run.name),
      h("span", { class: "when" }, times),
      h("span", { class: "line" }, run.line || run.title || " "),
      this.places.length > 1 && h("span", { class: "place" }, run.place),
      pill(run.phase));
  }
}
