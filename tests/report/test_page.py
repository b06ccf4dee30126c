"""The page of full, failed, half and empty runs."""

import re
from html.parser import HTMLParser
from pathlib import Path
from types import ModuleType

import pytest

from everstep.runtime.job import records as job
from everstep.runtime.protocol.rounds import Member, Round
from everstep.runtime.report import History, Run, WorkflowFacts, flow, read_run, render
from everstep.runtime.report.history import history
from everstep.runtime.report.page import overview
from everstep.runtime.store import open_store

VOID = {"meta", "link", "br", "img", "hr", "input"}


class Strict(HTMLParser):
    """Fails on a tag that is not closed or closes what is not open; keeps addresses, ids, table rows, tags."""

    def __init__(self) -> None:
        super().__init__()
        self.open: list[str] = []
        self.tags: set[str] = set()
        self.addresses: list[str] = []
        self.ids: list[str] = []
        self.references: list[str] = []

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.tags.add(tag)
        for name, value in attrs:
            if name in ("href", "src", "srcset", "xlink:href", "action", "data"):
                self.addresses.append(value or "")
            if name == "id":
                self.ids.append(value or "")
            if name == "aria-labelledby":
                self.references += (value or "").split()
        if tag not in VOID:
            self.open.append(tag)

    def handle_startendtag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.handle_starttag(tag, attrs)
        if tag not in VOID:
            self.open.pop()

    def handle_endtag(self, tag: str) -> None:
        assert self.open, f"</{tag}> closes nothing"
        assert self.open.pop() == tag, f"</{tag}> closes another tag"


def parse_page(page: str) -> Strict:
    page_parser = Strict()
    page_parser.feed(page)
    assert page_parser.open == []
    assert all(address.startswith("logs/") for address in page_parser.addresses)
    assert "script" not in page_parser.tags
    assert "link" not in page_parser.tags
    assert not re.search(r"url\((?!#)|@import|https?://", page)
    assert len(set(page_parser.ids)) == len(page_parser.ids)
    assert set(page_parser.references) <= set(page_parser.ids)
    return page_parser


def page_of(maker_run: object, phase: str = "") -> str:
    facts = WorkflowFacts(maker_run.uid, phase)  # type: ignore[attr-defined]
    run = read_run(open_store(str(maker_run.store)), maker_run.name, facts=facts, folder=maker_run.folder)  # type: ignore[attr-defined]
    return render(run, 1_780_000_151.0)


def test_a_full_run_shows_its_steps_curves_restarts_and_ledger(maker: ModuleType, tmp_path: Path) -> None:
    page = page_of(maker.full_run(tmp_path), phase="Succeeded")
    parse_page(page)
    assert "rank 1 on worker-1-0 (signal 9)" in page
    assert "node worker-1-0" in page
    assert "round 3, 2 nodes, iteration 139 from memory" in page
    for words in (
        "tokenize",
        "Loss",
        "Throughput",
        "perplexity 31.2",
        "Where the 3 min 55 s of 3 nodes went",
        "100.0 %",
    ):
        assert words in page


def test_a_failed_run_says_what_failed_and_what_to_do(maker: ModuleType, tmp_path: Path) -> None:
    page = page_of(maker.failed_run(tmp_path), phase="Failed")
    parse_page(page)
    assert "main: Error (exit code 1)" in page
    assert "iteration 12  loss 7.6" in page
    assert "fix the script or its data" in page
    assert "--name llama-finetune-bad1" in page


def test_text_from_a_run_is_never_markup(maker: ModuleType, tmp_path: Path) -> None:
    failed = page_of(maker.failed_run(tmp_path / "a"))
    assert "&lt;script&gt;alert(" in failed
    assert "<b>is</b>" not in page_of(maker.full_run(tmp_path / "b"))
    hostile = Run(name='"><script>x</script>', phase='Failed" onload="x', notes=("<img src=x>",))
    parse_page(render(hostile, 0.0))


def test_an_empty_run_is_a_page_that_says_what_is_missing(tmp_path: Path) -> None:
    page = render(read_run(open_store(str(tmp_path / "store")), "nothing", folder=tmp_path), 0.0)
    parse_page(page)
    assert "training had not begun" in page
    assert "no workflow.json" in page


def test_without_a_run_folder_the_failures_that_argo_names_are_shown(tmp_path: Path) -> None:
    failures = ({"displayName": "train", "message": "main: Error (exit code 3)", "phase": "Failed"},)
    page = render(
        read_run(open_store(str(tmp_path)), "r", facts=WorkflowFacts(uid="u", phase="Failed", failures=failures)), 0.0
    )
    parse_page(page)
    assert "main: Error (exit code 3)" in page


GRAPH = {"corpus": (), "tokenize": ("corpus",), "train": ("tokenize",), "evaluate": ("train",)}


def cluster_run(phase: str, failures: tuple[dict[str, str], ...] = (), jobs: dict[str, History] | None = None) -> Run:
    """As a report's pod knows it: two steps left a summary."""
    step_summaries = {"corpus": {"seconds": 2.0, "ended": 102.0}, "tokenize": {"seconds": 5.0, "ended": 108.0}}
    return Run(
        "ours",
        "u",
        phase,
        failures=failures,
        steps=step_summaries,
        graph=GRAPH,
        on_cluster=True,
        own="report",
        jobs=jobs or {},
    )


def test_on_a_cluster_the_steps_are_drawn_by_their_edges() -> None:
    failed = {"displayName": "train", "templateName": "train", "phase": "Failed", "message": "exit 1"}
    steps = flow.steps(cluster_run("Failed", (failed,)), 200.0)
    assert [(step.name, step.phase, step.after, step.begin) for step in steps] == [
        ("corpus", "Succeeded", (), 100.0), ("tokenize", "Succeeded", ("corpus",), 103.0),
        ("train", "Failed", ("tokenize",), None), ("evaluate", "Omitted", ("train",), None),
        ("report", "Succeeded", ("evaluate",), None),
    ]  # fmt: skip
    assert len(flow.draw(steps, across=True).arrows) == 4


DAG = {"dag": {"tasks": [{"name": "data"}, {"name": "train", "depends": "data"}]}}
LISTS = {"steps": [[{"name": "data"}], [{"name": "train"}]]}


@pytest.mark.parametrize(
    ("entry", "paths", "attempts"),
    [(DAG, ("train.data", "train.train"), ()), (LISTS, ("train[0].data", "train[1].train"), ()),
     (DAG, ("train(1).data", "train(1).train"), ("train(0)", "train(1)"))],
)  # fmt: skip
def test_a_step_is_shown_by_its_own_node_whatever_else_has_its_name(
    entry: dict[str, object], paths: tuple[str, str], attempts: tuple[str, ...]
) -> None:
    data, train = paths
    shown = {
        "train": "train", "train(0)": "train(0)", "train(0).train": "train", "train(1)": "train(1)", data: "data",
        f"{data}.train": "train", f"{train}.onExit": "train.onExit", train: "fit", "train.onExit": "train.onExit",
    }  # fmt: skip
    nodes: dict[str, dict[str, object]] = {
        name: {
            "id": name, "name": name, "displayName": title, "phase": "Succeeded",
            "startedAt": f"2026-05-01T00:00:{second:02d}Z",
        }
        for second, (name, title) in enumerate(shown.items())
    }  # fmt: skip
    nodes["train"] |= {"type": "Retry" if attempts else "DAG", "children": list(attempts)}
    templates = [{"name": "main", **entry}]
    spec = {"entrypoint": "main", "onExit": "report", "templates": templates}
    run = Run("train", workflow={"metadata": {"name": "train"}, "spec": spec, "status": {"nodes": nodes}})
    begins = {step.name: step.begin for step in flow.steps(run, 0.0)}
    own = {"data": data, "train": train, "report": "train.onExit"}
    assert begins == {step: flow.parse_time(nodes[name]["startedAt"]) for step, name in own.items()}


@pytest.mark.parametrize(
    ("group", "items", "phase", "seconds"),
    [
        ("Succeeded", {"0:a": "Succeeded", "1:b": "Succeeded", "2:c": "Skipped"}, "Succeeded", 12.0),
        ("Failed", {"0:a": "Failed", "1:b": "Error", "2:c": "Succeeded"}, "Error", 12.0),
        ("Running", {"0:a": "Failed", "1:b": "Running", "2:c": "Succeeded"}, "Running", 90.0),
        ("Running", {"0:a": "Pending", "1:b": "Pending"}, "Pending", None),
        ("Running", {"0:a": "Succeeded", None: "not begun"}, "Running", 90.0),
        ("Succeeded", {"0:a": "Skipped", "1:b": "Skipped"}, "Skipped", None),
    ],
)
def test_a_step_with_items_is_shown_by_them(
    group: str, items: dict[str | None, str], phase: str, seconds: float | None
) -> None:
    """As Argo has it: no node of the step, and its items, whose own attempts are not theirs, below the group's."""
    children = [f"w[0].train({item})" for item in items]
    nodes: list[dict[str, object]] = [
        {"name": "w", "type": "Steps", "children": ["w[0]"]},
        {"name": "w[0]", "type": "StepGroup", "phase": group, "children": [*children, "w[0].train-too(0:a)"]},
        {"name": "w[0].train-too(0:a)", "type": "Pod", "phase": "Failed", "startedAt": "2026-05-01T00:00:00Z"},
        {"name": "w[0].train(0:a)(0)", "type": "Pod", "phase": "Failed", "startedAt": "2026-05-01T00:00:00Z"},
    ]
    for second, (item, of_item) in enumerate(items.items(), 10):
        times = {"startedAt": f"2026-05-01T00:00:{second}Z"}
        times |= {"finishedAt": f"2026-05-01T00:00:{second + 10}Z"} if of_item not in ("Pending", "Running") else {}
        if item:
            nodes.append({"name": f"w[0].train({item})", "type": "Pod", "phase": of_item, "message": of_item, **times})
    by_id = {str(node["name"]): {"id": node["name"], **node} for node in nodes}
    steps = [[{"name": "train", "withItems": ["a", "b", "c"]}, {"name": "train-too", "withItems": ["a"]}]]
    spec = {"entrypoint": "main", "templates": [{"name": "main", "steps": steps}]}
    run = Run("w", workflow={"metadata": {"name": "w"}, "spec": spec, "status": {"nodes": by_id}})
    step = flow.steps(run, flow.parse_time("2026-05-01T00:01:40Z") or 0.0)[0]
    assert (step.phase, step.seconds) == (phase, seconds)
    assert step.message == ("Error" if phase == "Error" else step.message)


def test_of_a_stopped_run_it_says_that_its_nodes_ended_and_how_it_continues() -> None:
    stopped_history = history(
        [job.JobEnded(time=150.0, result=job.JobResult.STOPPED, reason="told to stop", error="", exit_code=143)], []
    )
    run = cluster_run("Failed", jobs={"train": stopped_history})
    page = render(run, 200.0)
    assert "The run was stopped, and its nodes ended: `argo retry ours` continues at the unfinished step." in page
    assert "--name" not in page


def test_a_missing_journal_and_torn_telemetry_are_told(maker: ModuleType, tmp_path: Path) -> None:
    maker_run = maker.full_run(tmp_path)
    store = open_store(str(maker_run.store))
    for entry in list(store.list(f"jobs/{maker_run.uid}-train/journal/")):
        store.delete(entry.key)
    store.put(f"jobs/{maker_run.uid}-train/telemetry/000002-000001.jsonl", b'{"v":1,"ti')
    page = page_of(maker_run)
    parse_page(page)
    assert "has no journal" in page
    assert "1 unreadable lines" in page
    assert "Loss" in page


def test_a_record_of_a_later_version_is_told_and_the_rest_is_shown(maker: ModuleType, tmp_path: Path) -> None:
    maker_run = maker.full_run(tmp_path)
    store = open_store(str(maker_run.store))
    store.put(f"jobs/{maker_run.uid}-train/journal/000099", b'{"kind":"FromTheFuture","time":1}\n')
    page = page_of(maker_run)
    assert "not a record this version knows" in page
    assert "round 2, 2 nodes" in page


def test_a_fault_says_its_cause_its_cost_and_where_to_read_on(maker: ModuleType, tmp_path: Path) -> None:
    maker_run = maker.full_run(tmp_path)
    for step in ("train", "pretrain"):
        (logs := maker_run.folder / "logs" / f"{maker_run.uid}-{step}").mkdir(parents=True)
        (logs / "worker-1-0.log").write_text("")
    store = open_store(str(maker_run.store))
    store.put(f"jobs/{maker_run.uid}-train/logs/worker-1-0/stacks-000001-3.txt", b"rank 1 is in data_loader.py:88")
    page = page_of(maker_run)
    assert parse_page(page).addresses.count(f"logs/{maker_run.uid}-train/worker-1-0.log") == 2
    assert "pretrain" not in page, "another step's node of that name"
    assert "data_loader.py:88" in page
    assert "First, rank 1 on worker-1-0 ended (signal 9) at iteration 81: killed from outside." in page
    assert "No other rank had an error of its own." in page
    assert "4.5 s rendezvous, 3.0 s start-up and imports" in page


def test_parameters_settings_and_environment_are_shown_but_no_secret() -> None:
    parameters = [{"name": "iterations", "value": "150"}, {"name": "hf_token", "value": "hf_abcdef"}]
    steps = {"train": {"settings": {"seed": 7}, "environment": {"host": "gpu-17", "torch": "2.9.0"}}}
    page = render(Run("r", workflow={"spec": {"arguments": {"parameters": parameters}}}, steps=steps), 0.0)
    for words in ("iterations", "150", "seed", "gpu-17", "2.9.0", "hf_token"):
        assert words in page
    assert "hf_abcdef" not in page


def test_a_job_of_many_rounds_has_a_page_that_a_browser_opens() -> None:
    records: list[job.Record] = []
    lines = []
    for number in range(1, 3001):
        at, names = 10.0 * number, (f"worker-0-{number}", f"worker-1-{number // 9}")
        members = tuple(Member(name, "", "", 1) for name in names)
        records += [
            job.NodeRequested(time=at, node=names[0], role="worker", index=0, launch=number, host=""),
            job.RoundFormed(time=at, round=Round(number, {"worker": members}, "", 1, None, "")),
            job.NodeLost(time=at + 9, node=names[0], reason=job.Reason.NODE_LOST),
            job.RoundBroken(time=at + 9, round=number, reason=job.Reason.NODE_LOST, detail="gone", node=names[0]),
        ]
        lines.append({"time": at + 5, "round": number, "iteration": number, "loss": 4.0, "tokens": 64, "seconds": 2.0})
    run = Run("many", jobs={"train": history(records, lines)})
    page = render(run, 30_010.0)
    parse_page(page)
    assert len(page) < 1_000_000
    assert "2950 earlier ones" in page
    assert "nodes are left out" in page
    assert overview(run, 30_010.0).startswith("3000 restarts, ")
