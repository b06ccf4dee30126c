// Drawings of a run: steps, curves, rounds, ledger. Their geometry comes from the server, as in the report.

import { duration, h, percent, short, svg, WORDS, clock } from "/dom.js";

export function dag(drawing, kind, steps, onStep) {
  const byName = new Map(steps.map((step) => [step.name, step]));
  const tip = `tip-${kind}`;
  const cut = (text) => (text.length > 17 ? `${text.slice(0, 16)}…` : text);
  const root = svg("svg", { class: `dag ${kind}`, viewBox: `-2 -2 ${drawing.width + 4} ${drawing.height + 4}`, role: "group", "aria-label": "steps of the run" },
    svg("defs", {}, svg("marker", { id: tip, viewBox: "0 0 8 8", refX: 5, refY: 4, markerWidth: 7, markerHeight: 7, orient: "auto" }, svg("path", { d: "M0 0L8 4L0 8Z", class: "tip" }))),
    drawing.arrows.map((arrow) => svg("path", { class: "arrow", d: arrow, "marker-end": `url(#${tip})` })),
    drawing.boxes.map((box) => {
      const step = byName.get(box.step);
      const word = WORDS[step.phase] || step.phase;
      const time = step.phase === "Running" && step.began ? "" : step.seconds === null ? "" : ` · ${duration(step.seconds)}`;
      const tries = step.attempts > 1 ? ` · try ${step.attempts}` : "";
      return svg("g", { class: `step ${step.phase}`, tabindex: 0, role: "button", "aria-label": `${step.name}: ${word}${time}; show its log`,
        onclick: () => onStep(step.name), onkeydown: (event) => { if (event.key === "Enter") onStep(step.name); } },
        svg("title", {}, `${step.name}: ${word}${time}${tries}\n${step.summary || step.message || ""}`),
        svg("rect", { x: box.x, y: box.y, width: drawing.boxWidth, height: drawing.boxHeight, rx: 9 }),
        svg("text", { x: box.x + 13, y: box.y + 24 }, cut(step.name)),
        svg("text", { class: "sub", x: box.x + 13, y: box.y + 43 }, word + time + tries));
    }));
  root.style.setProperty("width", `min(100%, ${drawing.width + 4}px)`);
  return root;
}

export function chart(data, points, column) {
  const places = data.path.slice(1).split("L").map((pair) => pair.split(" ").map(Number));
  const first = places[0], last = places[places.length - 1];
  const cursor = svg("path", { class: "cursor", d: "" });
  const note = h("output", { class: "note", hidden: true });
  const plot = svg("svg", { viewBox: "0 0 100 100", preserveAspectRatio: "none", role: "img", "aria-label": data.description },
    data.y_ticks.map((tick) => svg("path", { class: "tick", d: `M0 ${tick.at}H100` })),
    svg("path", { class: "area", d: `${data.path}L${last[0]} 100L${first[0]} 100Z` }),
    data.marks.map((mark) => svg("path", { class: "mark", d: `M${mark.at} 0V100` }, svg("title", {}, mark.label))),
    svg("path", { class: "curve raw", d: data.path }), svg("path", { class: "curve", d: smooth(places) }), cursor);
  const dot = h("i", { class: "dot", style: { left: `${last[0]}%`, top: `${last[1]}%` } });
  const holder = h("div", { class: "canvas" }, plot, dot, note);
  const [one, other] = [data.x_ticks[0], data.x_ticks[data.x_ticks.length - 1]];
  if (one && other && one !== other && points.length > 1) {
    const scale = (Number(other.label) - Number(one.label)) / (other.at - one.at);
    holder.addEventListener("pointermove", (event) => {
      const box = holder.getBoundingClientRect();
      const wanted = Number(one.label) + ((event.clientX - box.left) / box.width * 100 - one.at) * scale;
      const near = points.reduce((best, point) => (Math.abs(point[0] - wanted) < Math.abs(best[0] - wanted) ? point : best));
      const at = one.at + (near[0] - Number(one.label)) / scale;
      cursor.setAttribute("d", `M${at} 0V100`);
      note.hidden = false;
      note.textContent = `${near[0]} · ${short(near[column])} · ${clock(near[3])}`;
      note.classList.toggle("left", at > 60);
      note.style.setProperty("left", `${at}%`);
    });
    holder.addEventListener("pointerleave", () => { cursor.setAttribute("d", ""); note.hidden = true; });
  }
  return [
    h("h2", {}, data.title, h("small", {}, data.unit)),
    h("div", { class: "plot" },
      h("div", { class: "y", "aria-hidden": "true" }, data.y_ticks.map((tick) => h("span", { style: { top: `${tick.at}%` } }, tick.label))),
      holder,
      h("div", { class: "x", "aria-hidden": "true" }, data.x_ticks.map((tick) => h("span", { style: { left: `${tick.at}%` } }, tick.label)))),
  ];
}

// The exponential average of a curve's places, over about a thirtieth of them: what a noisy loss tends to.
function smooth(places) {
  const least = 1 / Math.max(places.length / 30, 1);
  let mean = places[0][1];
  return `M${places.map(([x, y], index) => `${x} ${(mean += (y - mean) * Math.max(least, 1 / (index + 1))).toFixed(3)}`).join("L")}`;
}

export function rounds(timeline) {
  const marks = () => timeline.marks.map((mark) => h("i", { title: mark.label, style: { left: `${mark.at}%` } }));
  const place = (bar) => ({ left: `${bar.left}%`, width: `${bar.width}%` });
  return [
    h("h2", {}, "Nodes and rounds", h("small", {}, timeline.hidden ? `${timeline.hidden} more nodes in the report` : "dashed: a fault")),
    h("div", { class: "lanes", role: "img", "aria-label": timeline.description },
      h("div", { class: "lane" }, h("span", { class: "name" }, "round"),
        h("div", { class: "track" }, timeline.rounds.map((bar) => h("b", { title: bar.title, style: place(bar) }, bar.label)), marks())),
      timeline.lanes.map((lane) => h("div", { class: "lane" }, h("span", { class: "name", title: lane.name }, lane.name),
        h("div", { class: "track" }, lane.bars.map((bar) => h("u", { class: `a${bar.colour}`, title: bar.activity, style: place(bar) })), marks()))),
      h("div", { class: "lane" }, h("span", {}), h("div", { class: "x" }, timeline.ticks.map((tick) => h("span", { style: { left: `${Math.min(tick.at, 97)}%` } }, tick.label))))),
  ];
}

export function ledger(entries, seconds) {
  const parts = entries.filter((one) => one.share > 0.0005);
  return [
    h("h2", {}, "Where the nodes' time went", h("small", {}, duration(seconds))),
    h("div", { class: "bar", role: "img", "aria-label": parts.map((one) => `${one.activity}: ${percent(one.share)}`).join(", ") },
      parts.map((one) => h("i", { class: `a${one.colour}`, title: `${one.activity}: ${percent(one.share)}`, style: { width: `${one.share * 100}%` } }))),
    h("dl", { class: "legend" }, parts.slice().sort((one, other) => other.share - one.share).map((one) => [
      h("dt", {}, h("i", { class: `a${one.colour}` }), one.activity), h("dd", {}, h("b", {}, percent(one.share)), duration(one.seconds))])),
  ];
}
