"""The page of full, failed, half and empty runs."""

import re
from html.parser import HTMLParser
from pathlib import Path
from types import ModuleType

from everstep.runtime.report import Run, read_run, render
from everstep.runtime.report.charts import LANES
from everstep.runtime.report.history import History, Point, Restart, RoundSpan
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


def parsed(page: str) -> Strict:
    found = Strict()
    found.feed(page)
    assert found.open == []
    assert found.addresses == []
    assert "script" not in found.tags
    assert "link" not in found.tags
    assert not re.search(r"url\((?!#)|@import|https?://", page)
    assert len(set(found.ids)) == len(found.ids)
    assert set(found.references) <= set(found.ids)
    return found


def page_of(made: object, **more: object) -> str:
    run = read_run(open_store(str(made.store)), made.name, uid=made.uid, folder=made.folder, **more)  # type: ignore[attr-defined,arg-type]
    return render(run, 1_780_000_151.0)


def test_a_full_run_shows_its_steps_curves_restarts_and_ledger(maker: ModuleType, tmp_path: Path) -> None:
    page = page_of(maker.full_run(tmp_path), phase="Succeeded")
    parsed(page)
    assert "rank 1 on worker-1-0 (signal 9)" in page
    assert "node worker-1-0" in page
    assert "round 3, 2 nodes, iteration 139 from memory" in page
    for words in ("tokenize", "Loss", "Throughput", "Where the 2 min 00 s went", "100.0 %", "perplexity 31.2"):
        assert words in page


def test_a_failed_run_says_what_failed_and_what_to_do(maker: ModuleType, tmp_path: Path) -> None:
    page = page_of(maker.failed_run(tmp_path), phase="Failed")
    parsed(page)
    assert "main: Error (exit code 1)" in page
    assert "iteration 12  loss 7.6" in page
    assert "fix the script or its data" in page
    assert "--name llama-finetune-bad1" in page


def test_text_from_a_run_is_never_markup(maker: ModuleType, tmp_path: Path) -> None:
    failed = page_of(maker.failed_run(tmp_path / "a"))
    assert "&lt;script&gt;alert(" in failed
    assert "<b>is</b>" not in page_of(maker.full_run(tmp_path / "b"))
    hostile = Run(name='"><script>x</script>', phase='Failed" onload="x', notes=("<img src=x>",))
    parsed(render(hostile, 0.0))


def test_an_empty_run_is_a_page_that_says_what_is_missing(tmp_path: Path) -> None:
    page = render(read_run(open_store(str(tmp_path / "store")), "nothing", folder=tmp_path), 0.0)
    parsed(page)
    assert "training had not begun" in page
    assert "no workflow.json" in page


def test_without_a_run_folder_the_failures_that_argo_names_are_shown(tmp_path: Path) -> None:
    failures = ({"displayName": "train", "message": "main: Error (exit code 3)", "phase": "Failed"},)
    page = render(read_run(open_store(str(tmp_path)), "r", uid="u", phase="Failed", failures=failures), 0.0)
    parsed(page)
    assert "main: Error (exit code 3)" in page


def test_a_missing_journal_and_torn_telemetry_are_told(maker: ModuleType, tmp_path: Path) -> None:
    made = maker.full_run(tmp_path)
    store = open_store(str(made.store))
    for entry in list(store.list(f"jobs/{made.uid}-train/journal/")):
        store.delete(entry.key)
    store.put(f"jobs/{made.uid}-train/telemetry/000002-000001.jsonl", b'{"v":1,"ti')
    page = page_of(made)
    parsed(page)
    assert "has no journal" in page
    assert "1 unreadable lines" in page
    assert "Loss" in page


def test_a_record_of_a_later_version_is_told_and_the_rest_is_shown(maker: ModuleType, tmp_path: Path) -> None:
    made = maker.full_run(tmp_path)
    store = open_store(str(made.store))
    store.put(f"jobs/{made.uid}-train/journal/000099", b'{"kind":"FromTheFuture","time":1}\n')
    page = page_of(made)
    assert "not a record this version knows" in page
    assert "round 2, 2 nodes" in page


def test_a_job_of_many_rounds_has_a_page_that_a_browser_opens() -> None:
    rounds = tuple(
        RoundSpan(number, 10.0 * number, 10.0 * number + 9, (f"worker-0-{number}", f"worker-1-{number // 9}"), "", None)
        for number in range(1, 3001)
    )
    restarts = tuple(
        Restart(10.0 * number + 9, number, "worker-0", "rank 0", "killed", "", 1.0, 0) for number in range(1, 3000)
    )
    points = tuple(Point(10.0 * number + 5, number, number, 4.0, 64.0, 2.0) for number in range(1, 3001))
    told = History(rounds, restarts, points, takeovers=(1.0,) * 500, begin=10.0, end=30_010.0)
    run = Run("many", jobs={"train": told})
    page = render(run, 30_010.0)
    parsed(page)
    assert len(page) < 1_000_000
    assert "restarts 1 to 2799" in page
    assert "2799 earlier ones" in page
    assert f"{3000 + 334 - LANES} nodes of older rounds are left out" in page
    assert overview(run, 30_010.0).startswith("2999 restarts, 49 min 59 s lost")
