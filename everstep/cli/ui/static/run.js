// One run: its head with buttons, then what its jobs do, live.

import { post, Stream } from "/api.js";
import { chart, dag, ledger, rounds } from "/charts.js";
import { byId, bytes, clock, duration, h, lasting, Parts, percent, pill, short, since } from "/dom.js";
import { Log } from "/log.js";

const LIVE = ["Running", "Pending"];

export class RunView {
  constructor(main, place, name) {
    Object.assign(this, { main, place, name, chosen: "", run: null, ranks: {}, logs: [], parts: new Parts(), jobs: new Map() });
    this.log = new Log((log) => this.choose(log));
    this.head = h("header", { class: "head" });
    this.steps = h("section", { class: "card" });
    this.middle = h("div", { class: "middle" });
    this.rest = h("div", { class: "rest" });
    this.head.append(h("h1", {}, name), h("p", { class: "soft" }, "Reading…"));
    main.replaceChildren(h("a", { class: "back", href: "#/" }, "‹ all runs"), this.head);
    main.scrollTo(0, 0);
    this.open();
  }
  close() {
    this.stream.close();
  }
  open() {
    this.stream?.close();
    const query = new URLSearchParams({ place: this.place, name: this.name, ...(this.chosen && { log: this.chosen }) });
    this.stream = new Stream(`/api/run?${query}`, (kind, data) => this.on(kind, data), (state) => this.onState(state));
  }
  choose(log) {
    if (!log) return;
    this.chosen = log;
    this.log.setLogs(this.logs, log);
    this.open();
  }
  onState(state) {
    if (state === "live") this.log.clear();
    else if (state !== "lost" && !this.run) this.head.replaceChildren(h("h1", {}, this.name), h("p", {}, state));
  }
  on(kind, data) {
    if (kind === "run") {
      this.run = data;
      this.render();
    } else if (kind === "ranks") {
      this.ranks = data;
      this.renderRanks();
    } else if (kind === "logs") {
      this.logs = data;
      if (!this.chosen && data.length) this.choose(data.find((log) => log.startsWith("train") && !log.includes("/")) || data[0]);
      this.log.setLogs(data, this.chosen);
    } else if (kind === "log" && data.log === this.chosen) {
      if (data.begins) this.log.clear();
      this.log.add(data.text);
    } else if (kind === "trouble") this.parts.show(this.head, "head", data, () => [h("h1", {}, this.name), h("p", { class: "trouble" }, data.text)]);
  }

  render() {
    const run = this.run;
    if (!this.steps.isConnected) this.main.append(this.steps, this.middle, this.log.element, this.rest);
    const { phase, began, ended, title, next, message, outcome, uses, jobs } = run;
    this.parts.show(this.head, "head", [phase, began, ended, title, next, message, outcome, uses, jobs.map((job) => [job.name, job.status?.nodes?.length])], () => this.renderHead(run));
    this.parts.show(this.steps, "steps", [run.steps, run.across], () => [
      h("div", { class: "row" }, h("h2", {}, "Steps"), this.now(run)),
      dag(run.across, "across", run.steps, (step) => this.chooseStep(step)), dag(run.down, "down", run.steps, (step) => this.chooseStep(step))]);
    for (const job of run.jobs) this.renderJob(job);
    for (const [name, holder] of this.jobs) if (!run.jobs.some((job) => job.name === name)) { holder.root.remove(); this.jobs.delete(name); }
    this.renderRanks();
    this.parts.show(this.rest, "rest", [run.parameters, run.notes], () => [
      run.parameters.length > 0 && h("details", { class: "card" }, h("summary", {}, `${run.parameters.length} parameters`),
        h("dl", { class: "pairs" }, run.parameters.map(([name, value]) => [h("dt", {}, name), h("dd", {}, value || "–")]))),
      run.notes.length > 0 && h("details", { class: "card" }, h("summary", {}, `${run.notes.length} things are not shown`), run.notes.map((note) => h("p", { class: "soft" }, note)))]);
  }
  now(run) {
    const done = run.steps.filter((step) => step.phase === "Succeeded").length;
    return h("small", {}, `${done} of ${run.steps.length} done`);
  }
  chooseStep(step) {
    const log = this.logs.find((one) => one === step || one.startsWith(`${step}(`) || one.includes(`-${step}-`));
    if (log) this.choose(log);
    this.log.element.scrollIntoView({ behavior: "smooth", block: "nearest" });
  }

  renderHead(run) {
    const isLive = LIVE.includes(run.phase), isBad = ["Failed", "Error", "Interrupted"].includes(run.phase);
    const when = run.ended ? [since(run.ended, "ended "), ` · took ${duration(run.ended - run.began)}`] : [`started ${clock(run.began)} · `, lasting(run.began)];
    const buttons = h("div", { class: "buttons" },
      run.jobs.length > 0 && isLive && run.jobs.map((job) => this.button(run.jobs.length > 1 ? `Stacks of ${job.name}` : "Stacks", () => this.stacks(job))),
      isBad && this.button(run.phase === "Interrupted" ? "Go on" : "Retry", () => this.confirm("retry", "Let what did not succeed run again? What is done is kept.")),
      isLive && this.button("Stop", () => this.confirm("stop", "Stop this run? Its training saves what it has; Retry goes on from there."), "bad"));
    return [
      h("div", { class: "title" }, h("div", {}, h("h1", {}, run.name), pill(run.phase)), buttons),
      h("p", { class: "soft" }, run.title && `${run.title} · `, when, run.place !== "here" && ` · namespace ${run.place}`),
      (isBad || run.message) && h("div", { class: "notice bad" }, run.message && h("b", {}, run.message), h("span", {}, run.phase === "Interrupted" ? "No process runs it. Its nodes may go on for a while." : run.next)),
      run.outcome.length > 0 && h("dl", { class: "figures outcome" }, run.outcome.map(([name, value]) => h("div", {}, h("dt", {}, name), h("dd", {}, value)))),
      run.uses.length > 0 && run.ended > 0 && h("details", {}, h("summary", {}, "Use what it made"), h("dl", { class: "pairs" }, run.uses.map(([purpose, text]) => [h("dt", {}, purpose), h("dd", {}, h("code", {}, text))])))];
  }
  button(text, onclick, kind) {
    return h("button", { type: "button", class: kind, onclick }, text);
  }

  renderJob(job) {
    if (!this.jobs.has(job.name)) {
      const holder = { root: h("section", { class: "job" }) };
      for (const part of ["top", "loss", "speed", "ranks", "events", "rounds", "ledger", "checkpoints"]) holder[part] = h("section", { class: `card ${part}` });
      holder.top.className = "figures card";
      holder.root.append(holder.top, holder.loss, holder.speed, holder.ranks, holder.events, holder.rounds, holder.ledger, holder.checkpoints);
      this.jobs.set(job.name, holder);
      this.middle.append(holder.root);
    }
    const holder = this.jobs.get(job.name), key = (part) => `${job.name}/${part}`;
    const { timeline, charts } = job;
    this.parts.show(holder.top, key("top"), [job.iteration, job.loss, job.throughput, job.goodput, job.restarts, job.lost, job.commits.at(-1), job.status?.round, job.status?.nodes?.length, this.run.phase, this.run.jobs.length], () => this.renderFigures(job));
    for (const [part, title, column] of [["loss", "Loss", 1], ["speed", "Throughput", 2]]) {
      const data = charts.find((one) => one.title === title);
      holder[part].hidden = !data;
      if (data) this.parts.show(holder[part], key(part), data, () => chart(data, job.points.filter((point) => point[column] !== null), column));
    }
    this.parts.show(holder.events, key("events"), [job.events, job.error, job.result], () => this.renderEvents(job));
    holder.rounds.hidden = !timeline;
    if (timeline) this.parts.show(holder.rounds, key("rounds"), timeline, rounds);
    holder.ledger.hidden = !job.ledger.length;
    if (job.ledger.length) this.parts.show(holder.ledger, key("ledger"), job.ledger, () => ledger(job.ledger, job.nodeSeconds));
    this.parts.show(holder.checkpoints, key("checkpoints"), [job.commits, job.interval], () => this.renderCheckpoints(job));
  }
  renderFigures(job) {
    const round = job.status?.round, isLive = LIVE.includes(this.run.phase) && !job.result;
    const figure = (name, value, more, kind) => h("div", { class: kind }, h("dt", {}, name), h("dd", {}, value), h("small", {}, more || " "));
    const commit = job.commits.at(-1);
    const nodes = round ? round.nodes : 0;
    return [
      this.run.jobs.length > 1 && h("h2", { class: "whole" }, job.name),
      this.renderIteration(job, isLive),
      figure("loss", job.loss === null ? "–" : job.loss.toFixed(job.loss < 10 ? 3 : 1)),
      figure("tokens a second", short(job.throughput)),
      h("div", {}, h("dt", {}, "nodes"), h("dd", {}, isLive && h("button", { type: "button", class: "step", "aria-label": "one node less", disabled: nodes <= 1, onclick: () => this.scale(job, nodes - 1) }, "−"),
        h("span", {}, String(nodes || "–")), isLive && h("button", { type: "button", class: "step", "aria-label": "one node more", onclick: () => this.scale(job, nodes + 1) }, "+")),
        h("small", {}, round ? `${round.workers} ranks · round ${round.number}` : "no round yet")),
      figure("goodput", percent(job.goodput), "share of all seconds"),
      figure("restarts", String(job.restarts), job.restarts ? `${duration(job.lost)} lost` : "none", job.restarts ? "warn" : undefined),
      h("div", {}, h("dt", {}, "in the store"), h("dd", {}, commit ? short(commit[1]) : "–"), h("small", {}, commit ? since(commit[0]) : "no checkpoint yet"))];
  }
  renderIteration(job, isLive) {
    const total = this.run.jobs.length === 1 ? Number(this.run.parameters.find(([name]) => name === "iterations")?.[1]) || 0 : 0;
    const left = isLive && total && job.pace ? ` · ${remaining((total - job.iteration) * job.pace)} left` : "";
    return h("div", {}, h("dt", {}, "iteration"), h("dd", {}, String(job.iteration)), h("small", {}, total ? `of ${total}${left}` : job.result || "\u00a0"),
      total > 0 && h("span", { class: "track-of" }, h("i", { style: { width: `${Math.min(job.iteration / total, 1) * 100}%` } })));
  }
  renderEvents(job) {
    const rows = job.events.map((event) => h("li", { class: event.kind },
      h("i", {}), h("div", {}, h("span", {}, event.text), event.more && h("small", {}, event.more),
        event.cause && h("details", {}, h("summary", {}, "first cause"), h("p", {}, event.cause)),
        event.error && h("details", {}, h("summary", {}, "last words"), h("pre", {}, event.error))), since(event.time)));
    return [h("h2", {}, "What happened"), job.error && h("details", {}, h("summary", {}, "traceback of the first failing rank"), h("pre", {}, job.error)),
      rows.length ? h("ol", { class: "scroll", tabindex: 0 }, rows) : h("p", { class: "soft" }, "Nothing yet.")];
  }
  renderCheckpoints(job) {
    const rows = job.commits.slice().reverse().slice(0, 8).map(([time, iteration]) => h("li", {}, h("b", {}, `iteration ${iteration}`), since(time)));
    return [h("h2", {}, "Checkpoints in the store", h("small", {}, job.commitCount ? `${job.commitCount} in all` : "")),
      job.interval && h("p", { class: "soft" }, `A copy goes to the store ${job.interval}.`),
      rows.length ? h("ul", { class: "plain" }, rows) : h("p", { class: "soft" }, "None yet: every iteration is in the nodes' memory.")];
  }
  renderRanks() {
    for (const job of this.run?.jobs || []) {
      const holder = this.jobs.get(job.name);
      if (!holder) continue;
      const live = this.ranks[job.name]?.ranks || [], nodes = job.status?.nodes || [];
      holder.ranks.hidden = !nodes.length && !live.length;
      this.parts.show(holder.ranks, `${job.name}/ranks`, [live, nodes, this.ranks[job.name]?.slow], () => this.renderNodes(nodes, live, this.ranks[job.name]?.slow));
    }
  }
  renderNodes(nodes, live, slow) {
    const names = [...new Set([...nodes.map((node) => node.name), ...live.map((rank) => rank.node)])].slice(0, 128);
    const rows = names.map((name) => {
      const node = nodes.find((one) => one.name === name), ranks = live.filter((rank) => rank.node === name);
      const phase = node ? node.leaving ? `leaving: ${node.leaving}` : node.phase : "unknown";
      return h("div", { class: "node" },
        h("div", { class: "row" }, h("b", {}, name), h("span", { class: `state ${node?.phase || ""}` }, phase), h("small", {}, node?.host !== name && node?.host)),
        ranks.map((rank) => h("div", { class: `rank${rank.slow ? " slow" : ""}` },
          h("span", { class: "number" }, `rank ${rank.rank}`),
          h("span", { class: "meter", title: rank.waits === null ? "" : `waits for the others ${percent(rank.waits)} of the time` },
            h("i", { style: { width: `${rank.waits === null ? 0 : (1 - rank.waits) * 100}%` } })),
          h("span", {}, `${rank.pace.toFixed(1)} it/s`), h("span", {}, `${rank.cores.toFixed(1)} cores`), h("span", {}, bytes(rank.memory)),
          h("span", { class: "soft" }, rank.phase || "–"))),
        !ranks.length && node?.ranks && h("small", {}, `ranks ${node.ranks[0]} to ${node.ranks[1]}${this.place === "here" && LIVE.includes(this.run.phase) ? ": starting" : ""}`));
    });
    return [h("h2", {}, "Nodes", h("small", {}, live.length ? "bar: share of the time that a rank works, not waits" : "")), slow && h("p", { class: "notice" }, slow), h("div", { class: "scroll", tabindex: 0 }, rows)];
  }

  async act(what, more = {}) {
    const dialog = byId("dialog");
    show(dialog, h("p", { class: "soft" }, "…"));
    try {
      const deed = await post("/api/act", { place: this.place, name: this.name, what, ...more });
      show(dialog, h("h2", {}, deed.code ? "That did not work" : "Done"), h("code", {}, deed.command), deed.output && h("pre", { tabindex: 0 }, deed.output), closing(dialog));
    } catch (error) {
      show(dialog, h("h2", {}, "That did not work"), h("p", {}, String(error.message)), closing(dialog));
    }
  }
  confirm(what, question, more = {}) {
    const dialog = byId("dialog");
    show(dialog, h("h2", {}, this.name), h("p", {}, question), h("div", { class: "buttons" },
      this.button("No", () => dialog.close()), this.button(what === "stop" ? "Stop it" : what === "scale" ? "Scale" : "Go on", () => this.act(what, more), what === "stop" ? "bad" : "good")));
  }
  scale(job, nodes) {
    this.confirm("scale", `Train on ${nodes} node${nodes === 1 ? "" : "s"}? No sample is lost, none is applied twice.`, { job: job.name, nodes });
  }
  stacks(job) {
    this.act("stacks", { job: job.name });
  }
}

const remaining = (seconds) => (seconds < 90 ? `${Math.ceil(seconds)} s` : seconds < 5400 ? `${Math.round(seconds / 60)} min` : `${(seconds / 3600).toFixed(1)} h`);

function show(dialog, ...content) {
  dialog.replaceChildren(...content.filter(Boolean));
  if (!dialog.open) dialog.showModal();
}
const closing = (dialog) => h("div", { class: "buttons" }, h("button", { type: "button", autofocus: true, onclick: () => dialog.close() }, "Close"));
