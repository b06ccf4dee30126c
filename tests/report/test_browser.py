"""The page in a real browser: nothing overflows, texts have contrast, a planted script does nothing."""

import asyncio
from pathlib import Path
from types import ModuleType

from everstep.runtime.job import records as job
from everstep.runtime.protocol.rounds import Member, Round
from everstep.runtime.report import Run, WorkflowFacts, read_run, render
from everstep.runtime.report.history import history
from everstep.runtime.store import open_store
from tests import chromium
from tests.chromium import PLANT

pytestmark = chromium.NEEDED
LOOKS = [(width, dark) for width in (390, 1024, 1440) for dark in (False, True)]
OPEN_ALL = "document.querySelectorAll('details').forEach((one) => { one.open = true })"
TOO_WIDE = """[...document.querySelectorAll("body *")].filter((one) => !one.closest(".wide, pre, svg") &&
  one.checkVisibility() && one.getBoundingClientRect().right > innerWidth + 0.5)
  .map((one) => one.outerHTML.slice(0, 80))
  .concat(document.documentElement.scrollWidth > innerWidth ? ["the page"] : [])"""
TEXTS = """[...document.querySelectorAll("body *")].filter((one) => !one.closest("svg") &&
  [...one.childNodes].some((node) => node.nodeType === 3 && node.textContent.trim()))"""


def look_at(page: str, place: Path) -> None:
    """Every look of the page, with everything unfolded."""
    place.write_text(page, encoding="utf-8")

    async def watch() -> None:
        async with chromium.open_tab(place.as_uri()) as tab:
            await tab.until("document.querySelector('h1')")
            title = await tab.value("document.title")
            await tab.value(OPEN_ALL)
            for width, dark in LOOKS:
                await tab.size(width, 900, dark=dark)
                assert await tab.value(TOO_WIDE) == [], (width, dark)
                assert await tab.value(chromium.low_contrast(TEXTS)) == [], (width, dark)
            assert await tab.value("document.title") == title
            assert await tab.value("document.images.length") == 0
            assert tab.problems == []

    asyncio.run(watch())


def test_nothing_overflows_texts_have_contrast_and_a_planted_script_does_nothing(
    maker: ModuleType, tmp_path: Path
) -> None:
    maker_run = maker.failed_run(tmp_path)
    store = open_store(str(maker_run.store))
    (logs := maker_run.folder / "logs" / f"{maker_run.uid}-train").mkdir()
    (logs / "worker-1-0.log").write_text(PLANT)
    store.put(f"jobs/{maker_run.uid}-train/logs/worker-1-0/stacks-000001-1.txt", PLANT.encode())
    hostile = [
        *maker.journal()[:2],
        job.WorkerFaulted(
            time=maker.BEGIN + 30, node="worker-1-0", round=1, rank=1, local_rank=0, exit_code=1, iteration=3,
            reason=job.Reason.USER_ERROR, error=f"ValueError: {PLANT}{'w' * 3000}",
        ),
        job.RoundBroken(time=maker.BEGIN + 30, round=1, reason=job.Reason.USER_ERROR, detail=PLANT, node="worker-1-0"),
    ]  # fmt: skip
    run = read_run(store, maker_run.name, facts=WorkflowFacts(uid=maker_run.uid), folder=maker_run.folder)
    job_history = history(hostile, maker.telemetry()[:12])
    run = Run(
        PLANT, run.uid, "Failed", workflow={**run.workflow, "spec": {**run.workflow["spec"], "arguments": {
            "parameters": [{"name": PLANT, "value": "long" * 200}]}}},
        steps={**run.steps, "x": {"summary": PLANT, "facts": {"a": PLANT}, "settings": {"b": PLANT}}},
        jobs={"train": job_history}, logs=run.logs, node_logs=run.node_logs, stacks=run.stacks, notes=(PLANT,),
    )  # fmt: skip
    page = render(run, maker.BEGIN + 60)
    assert page.count("planted") > 5
    look_at(page, tmp_path / "report.html")


def big_run(nodes: int) -> Run:
    """Nodes that join one after the other, of which every seventh is lost and comes again."""
    names = tuple(f"worker-{number}-0" for number in range(nodes))
    members = tuple(Member(name, f"host-{name}", "", 8) for name in names)
    records: list[job.Record] = [job.MasterClaimed(time=1, epoch=1, address="a:1")]
    for time, name in enumerate(names, 1):
        records.append(job.NodeRequested(time=time, node=name, role="worker", index=time, launch=0, host=""))
    lines = []
    for number in range(1, 6):
        at = nodes + number * 200.0
        records.append(job.RoundFormed(time=at, round=Round(number, {"worker": members}, "", 1, None, "all joined")))
        lines += [
            {"time": at + 20 + 2 * i, "round": number, "iteration": 80 * number - 80 + i, "seconds": 2.0}
            for i in range(1, 80)
        ]
        lost_name = names[number % len(names)]
        records.append(
            job.RoundBroken(time=at + 180, round=number, reason=job.Reason.NODE_LOST, detail="gone", node=lost_name)
        )
        for time, name in enumerate(names):
            records.append(
                job.NodeJoined(
                    time=at + 181 + time / nodes * 10, node=name, host="", slots=8, address="", master_port=1,
                    holdings=(), after_round=number,
                )
            )  # fmt: skip
    return Run("big", phase="Running", jobs={"train": history(records, lines)})


def test_a_hundred_nodes_have_a_readable_timeline(tmp_path: Path) -> None:
    run = big_run(100)
    page = render(run, 2000.0)
    assert len(page) < 1_000_000
    look_at(page, tmp_path / "report.html")
