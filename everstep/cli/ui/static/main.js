// The story begins here: take the token, follow the list, show the run that the address names.

import { Stream, takeToken } from "/api.js";
import { byId, h, tick } from "/dom.js";
import { List } from "/list.js";
import { RunView } from "/run.js";

let view = null;
const main = byId("main");

function route() {
  const [, place, name] = location.hash.split("/").map(decodeURIComponent);
  document.body.classList.toggle("chosen", Boolean(name));
  if (view && view.place === place && view.name === name) return;
  view?.close();
  view = name ? new RunView(main, place, name) : null;
  if (!view) welcome();
  document.title = name ? `${name} · Everstep` : "Everstep";
}

function welcome() {
  main.replaceChildren(h("section", { class: "welcome" },
    h("h1", {}, "Nothing is chosen"),
    h("p", {}, "Choose a run, or start one:"),
    h("pre", {}, "python pipelines/llama_finetune.py\neverstep workflow run pipeline.yaml"),
    h("p", { class: "soft" }, "It appears here by itself.")));
}

// On a wide screen the newest run is shown at once; on a phone the list is the first page.
function onFirst(runs, complete) {
  if (!complete || location.hash.length > 2 || !matchMedia("(min-width: 900px)").matches || !runs.length) return;
  const run = runs.find((one) => one.phase === "Running") || runs[0];
  location.replace(`#/${encodeURIComponent(run.place)}/${encodeURIComponent(run.name)}`);
}

function onState(state) {
  const link = byId("link");
  link.className = `link ${state === "live" ? "live" : "lost"}`;
  link.textContent = state === "live" ? "live" : state === "lost" ? "not connected" : "refused";
  if (!["live", "lost"].includes(state) && !view) main.replaceChildren(h("section", { class: "welcome" }, h("h1", {}, "Not let in"), h("p", {}, state)));
}

takeToken();
addEventListener("hashchange", () => { takeToken(); route(); });
const list = new List(onFirst);
route();
new Stream("/api/list", (kind, data) => list.on(kind, data), onState);
setInterval(tick, 1000);
