// A log as it grows: follows its end until somebody scrolls up, finds words, colours nothing it does not know.

import { h } from "/dom.js";

const MOST = 4000;
const ESCAPES = /\x1b\[[0-9;?]*[A-Za-z]|\x1b\][^\x07]*\x07/g;
const CONTROLS = /[\x00-\x08\x0b-\x1f\x7f-\x9f\u200e\u200f\u202a-\u202e\u2066-\u2069]/g;
const BAD = /\b(error|traceback|exception|fatal|killed|failed|panic)\b/i;
const WARN = /\bwarn(ing)?\b/i;

export class Log {
  constructor(onChoose) {
    this.onChoose = onChoose;
    this.lines = [];
    this.follows = true;
    this.tabs = h("div", { class: "tabs", role: "tablist", "aria-label": "logs" });
    this.words = h("input", { type: "search", placeholder: "Only lines with…", "aria-label": "only lines with", oninput: () => this.renderAll() });
    this.more = h("select", { "aria-label": "more logs", hidden: true, onchange: () => this.onChoose(this.more.value) });
    this.end = h("button", { type: "button", class: "end", hidden: true, onclick: () => this.toEnd() }, "↓ newest lines");
    this.screen = h("div", { class: "screen", tabindex: 0, role: "log", "aria-label": "log", "aria-live": "off" });
    this.screen.addEventListener("scroll", () => {
      this.follows = this.screen.scrollHeight - this.screen.scrollTop - this.screen.clientHeight < 30;
      this.end.hidden = this.follows;
    });
    this.element = h("section", { class: "card log" }, h("div", { class: "row" }, h("h2", {}, "Logs"), this.tabs, this.more, this.words),
      h("div", { class: "frame" }, this.screen, this.end));
  }
  setLogs(logs, chosen) {
    const few = logs.slice(0, 6);
    if (chosen && !few.includes(chosen)) few.push(chosen);
    this.tabs.replaceChildren(...few.map((log) => h("button", { type: "button", role: "tab", "aria-selected": String(log === chosen), onclick: () => this.onChoose(log) }, log)));
    this.more.hidden = logs.length <= 6;
    this.more.replaceChildren(h("option", { value: "" }, `${logs.length} logs`), ...logs.map((log) => h("option", { value: log }, log)));
  }
  clear() {
    this.lines = [];
    this.follows = true;
    this.end.hidden = true;
    this.screen.replaceChildren(h("p", { class: "soft" }, "Nothing yet."));
  }
  add(text) {
    const fresh = text.replace(ESCAPES, "").split("\n");
    if (fresh.at(-1) === "") fresh.pop();
    const lines = fresh.map((line) => line.slice(line.lastIndexOf("\r", line.length - 2) + 1).replace(CONTROLS, "·"));
    if (!this.lines.length) this.screen.replaceChildren();
    this.lines.push(...lines);
    this.screen.append(...lines.filter((line) => this.fits(line)).map(row));
    if (this.lines.length > MOST) this.lines.splice(0, this.lines.length - MOST);
    while (this.screen.childElementCount > MOST) this.screen.firstElementChild.remove();
    if (this.follows) this.toEnd();
  }
  fits(line) {
    return line.toLowerCase().includes(this.words.value.toLowerCase());
  }
  renderAll() {
    this.screen.replaceChildren(...this.lines.filter((line) => this.fits(line)).map(row));
    this.toEnd();
  }
  toEnd() {
    this.screen.scrollTop = this.screen.scrollHeight;
  }
}

const row = (line) => h("div", { class: BAD.test(line) ? "bad" : WARN.test(line) ? "warn" : undefined }, line || " ");
