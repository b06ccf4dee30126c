// Elements from data. Text only ever becomes text: nothing here takes HTML.

const SVG = "http://www.w3.org/2000/svg";

function fill(element, attributes, children) {
  for (const [name, value] of Object.entries(attributes || {})) {
    if (value === undefined || value === null || value === false) continue;
    if (name.startsWith("on")) element.addEventListener(name.slice(2), value);
    else if (name === "style") for (const [key, text] of Object.entries(value)) element.style.setProperty(key, text);
    else element.setAttribute(name, value === true ? "" : String(value));
  }
  for (const child of children.flat(9)) if (child !== null && child !== undefined && child !== false) element.append(child);
  return element;
}

export const h = (tag, attributes, ...children) => fill(document.createElement(tag), attributes, children);
export const svg = (tag, attributes, ...children) => fill(document.createElementNS(SVG, tag), attributes, children);
export const byId = (id) => document.getElementById(id);

// Renders again only what has changed, so that what is selected or unfolded stays so; a list stays where it was scrolled to.
export class Parts {
  constructor() { this.known = new Map(); }
  show(holder, key, data, render) {
    const text = JSON.stringify(data);
    const known = this.known.get(key);
    if (known && known.text === text && known.holder === holder) return;
    this.known.set(key, { text, holder });
    const list = holder.querySelector(":scope > .scroll"), top = list?.scrollTop, focused = list && list === document.activeElement;
    holder.replaceChildren(...[render(data)].flat(9).filter((one) => one !== null && one !== undefined && one !== false));
    if (top) holder.querySelector(":scope > .scroll")?.scrollTo(0, top);
    if (focused) holder.querySelector(":scope > .scroll")?.focus({ preventScroll: true });
  }
}

export function duration(seconds) {
  if (seconds === null || seconds === undefined || !Number.isFinite(seconds)) return "–";
  if (seconds < 10) return `${seconds.toFixed(1)} s`;
  if (seconds < 100) return `${Math.round(seconds)} s`;
  const minutes = Math.floor(seconds / 60);
  if (minutes < 100) return `${minutes} min ${String(Math.round(seconds) % 60).padStart(2, "0")} s`;
  if (minutes < 2880) return `${Math.floor(minutes / 60)} h ${String(minutes % 60).padStart(2, "0")} min`;
  return `${Math.floor(minutes / 1440)} d ${Math.floor(minutes / 60) % 24} h`;
}

export function ago(time) {
  const seconds = Math.max(Date.now() / 1000 - time, 0);
  if (seconds < 2) return "now";
  if (seconds < 100) return `${Math.floor(seconds)} s ago`;
  if (seconds < 6000) return `${Math.floor(seconds / 60)} min ago`;
  if (seconds < 172800) return `${Math.floor(seconds / 3600)} h ago`;
  return `${Math.floor(seconds / 86400)} d ago`;
}

export function short(value) {
  if (value === null || value === undefined) return "–";
  for (const [limit, size, suffix] of [[1e9, 1e9, " G"], [1e6, 1e6, " M"], [1e4, 1e3, " k"]])
    if (Math.abs(value) >= limit) return (value / size).toPrecision(3) + suffix;
  return Math.abs(value) >= 100 ? value.toFixed(0) : Number(value.toPrecision(3)).toString();
}

export const bytes = (count) => (count >= 2 ** 30 ? `${(count / 2 ** 30).toFixed(1)} GiB` : `${Math.round(count / 2 ** 20)} MiB`);
export const percent = (share) => (share === null || share === undefined ? "–" : `${(share * 100).toFixed(1)} %`);
export const clock = (time) => new Date(time * 1000).toLocaleTimeString([], { hour12: false });

// A text that says how long ago something was, and is kept true by `tick`.
export const since = (time, before = "", after = "") =>
  h("time", { datetime: new Date(time * 1000).toISOString(), title: new Date(time * 1000).toLocaleString(), "data-since": time, "data-before": before, "data-after": after },
    before + ago(time) + after);
export const lasting = (time) => h("time", { "data-lasting": time }, duration(Math.max(Date.now() / 1000 - time, 0)));

export function tick() {
  for (const one of document.querySelectorAll("time[data-since]")) {
    const text = one.dataset.before + ago(Number(one.dataset.since)) + one.dataset.after;
    if (one.textContent !== text) one.textContent = text;
  }
  for (const one of document.querySelectorAll("time[data-lasting]"))
    one.textContent = duration(Math.max(Date.now() / 1000 - Number(one.dataset.lasting), 0));
}

export const WORDS = { Succeeded: "done", Failed: "failed", Error: "failed", Running: "running", Pending: "waiting", Interrupted: "interrupted",
  Unreadable: "unreadable", Skipped: "skipped", Omitted: "left out", Unknown: "unknown" };
export const pill = (phase) => h("span", { class: `pill ${phase}` }, h("i"), WORDS[phase] || phase);
