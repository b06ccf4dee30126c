"""The page in a real browser: what a person sees and what a planted script does not do."""

import asyncio
import itertools
import json
from collections.abc import Iterator
from pathlib import Path

import pytest

from everstep.cli.ui.live_ranks import LiveRanks
from everstep.runtime.store import open_store
from everstep.runtime.workflow.run.run_folder import lock
from tests import chromium
from tests.chromium import PLANT
from tests.harness import Pipeline, kill, wait_until
from tests.tokenized import SMALL_MODEL, fill_store, small_corpus
from tests.ui.page_server import TOKEN, serve_page, write_run

pytestmark = chromium.NEEDED
OVERFLOWS = "document.documentElement.scrollWidth > innerWidth"
CLIPPED = """[...document.querySelectorAll(".rank > span")].filter((one) => one.scrollWidth > one.clientWidth + 1
  || !one.checkVisibility()).map((one) => one.innerText)"""
COLUMNS = """[0, 1, 2, 3, 4, 5].map((column) => new Set([...document.querySelectorAll(".rank")].map((row) =>
  Math.round(row.children[column].getBoundingClientRect().left))).size)"""
FIGURES = """[...document.querySelectorAll(".figures small")].map((one) => one.innerText).filter((text) =>
  text.includes("left"))"""
WRAPPED = """[...document.querySelectorAll(".figures small")].filter((one) => one.getClientRects().length > 1)
  .map((one) => one.innerText)"""
TEXTS = """[...document.querySelectorAll("h1,h2,small,dt,dd,p,a,button,summary,.pill,.line,.when")].filter((one) =>
  one.innerText?.trim() && !one.disabled)"""


def test_a_planted_script_does_nothing_and_nothing_overflows(tmp_path: Path) -> None:
    hostile = write_run(tmp_path, "hostile", "Failed", message=PLANT, began=60_000)
    workflow = json.loads((hostile / "workflow.json").read_text())
    workflow["metadata"]["annotations"] = {"workflows.argoproj.io/title": PLANT}
    workflow["spec"]["arguments"] = {"parameters": [{"name": PLANT, "value": "long" * 200}]}
    (hostile / "workflow.json").write_text(json.dumps(workflow))
    (hostile / "logs" / "train.log").write_text(f"{PLANT}\n\x1b]0;planted\x07{'w' * 3000}\n")
    for number in range(300):
        write_run(tmp_path, f"run-{number}", began=number)

    async def watch() -> None:
        async with serve_page(tmp_path) as address, chromium.open_tab(f"{address}/#{TOKEN}") as tab:
            await tab.size(1440, 900)
            await tab.until("document.querySelector('h1')?.textContent === 'hostile'")
            await tab.until("document.querySelector('.screen').innerText.includes('onerror')")
            await tab.until("document.querySelector('.notice b')?.textContent.includes('onerror')")
            assert await tab.value("document.querySelectorAll('.run').length") == 100
            assert TOKEN not in await tab.value("location.href")
            for width, dark in ((390, False), (1024, True), (1440, False), (1440, True)):
                await tab.size(width, 900, dark=dark)
                assert not await tab.value(OVERFLOWS), width
                assert await tab.value(chromium.low_contrast(TEXTS)) == [], (width, dark)
            await tab.value("document.getElementById('search').value = 'run-299'")
            await tab.value("document.getElementById('search').dispatchEvent(new Event('input'))")
            assert await tab.value("document.querySelectorAll('.run').length") == 1
            assert "planted" not in await tab.value("document.title")
            assert tab.problems == []

    asyncio.run(watch())


def test_ranks_and_figures_are_whole_at_any_width_and_the_list_stays_where_it_was_scrolled_to(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    folder, store = write_run(tmp_path, "wide", "Running"), tmp_path / "store"
    workflow = json.loads((folder / "workflow.json").read_text())
    parameters = {"store": str(store), "iterations": "3121"}
    workflow["spec"]["arguments"] = {
        "parameters": [{"name": name, "value": value} for name, value in parameters.items()]
    }
    (folder / "workflow.json").write_text(json.dumps(workflow))
    line = {"v": 1, "time": 1.0, "round": 1, "iteration": 1, "rank": 0, "seconds": 1.0, "loss": 3.0}
    open_store(str(store)).put("jobs/u-train/telemetry/000001-000001.jsonl", json.dumps(line).encode())
    looks = itertools.count(1)

    def look(_: LiveRanks) -> dict[str, object]:
        row = {"pace": next(looks), "waits": 0.5, "slow": False, "cores": 127.5, "memory": 200 << 30}
        phases = ("forward", "collective all_reduce")
        ranks = [
            {**row, "rank": rank, "node": f"worker-{rank // 8}-0", "phase": phases[rank % 2]}
            for rank in range(1016, 1080)
        ]
        return {"ranks": ranks, "slow": ""}

    monkeypatch.setattr(LiveRanks, "look", look)

    async def watch() -> None:
        async with serve_page(tmp_path) as address, chromium.open_tab(f"{address}/#{TOKEN}") as tab:
            await tab.until("document.querySelector('.run')")
            await tab.value("document.querySelector('.run').click()")
            for width in (390, 750, 1024, 1440):
                await tab.size(width, 900)
                await tab.until("document.querySelectorAll('.rank').length === 64")
                assert await tab.value(CLIPPED) == [], width
                assert await tab.value(COLUMNS) == [1] * 6, width
                assert await tab.value(FIGURES) == ["of 3121 · 52 min left"], width
                assert await tab.value(WRAPPED) == [], width
                assert not await tab.value(OVERFLOWS), width
            await tab.value("document.querySelector('.ranks .scroll').scrollTo(0, 300)")
            await tab.value("window.rows = document.querySelector('.ranks .scroll')")
            await tab.until("document.querySelector('.ranks .scroll') !== window.rows")
            assert await tab.value("document.querySelector('.ranks .scroll').scrollTop") == 300
            assert tab.problems == []

    with lock(folder):  # Somebody runs it.
        asyncio.run(watch())


def test_without_the_token_nothing_is_shown(tmp_path: Path) -> None:
    write_run(tmp_path, "secret-run")

    async def watch() -> None:
        async with serve_page(tmp_path) as address, chromium.open_tab(address) as tab:
            await tab.until("document.getElementById('link').textContent === 'refused'")
            assert "secret-run" not in await tab.value("document.body.innerText")

    asyncio.run(watch())


@pytest.fixture
def pipeline(tmp_path: Path, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Pipeline]:
    folder, corpus = tmp_path / "runs" / "run", small_corpus(tmp_path_factory)
    flags = ("--corpus", corpus, "--iterations", "2000", "--nodes", "2", *SMALL_MODEL)
    pipeline = Pipeline(folder, folder.parent / "store", flags=flags)
    fill_store(tmp_path_factory, "small", corpus, folder.parent / "store")
    yield pipeline
    pipeline.kill_all()


@pytest.mark.long
def test_a_training_is_watched_while_a_worker_is_killed_then_scaled_and_stopped(pipeline: Pipeline) -> None:
    pytest.importorskip("torch")
    pipeline.start()
    wait_until(pipeline.jobs, "a job")
    pipeline.wait_iteration(8)

    async def watch() -> None:
        async with serve_page(pipeline.folder.parent) as address, chromium.open_tab(f"{address}/#{TOKEN}") as tab:
            await tab.size(1440, 900)
            await tab.until("document.querySelectorAll('.rank .meter').length === 2")
            await tab.until("document.querySelector('.loss .curve')")
            await tab.until("document.querySelector('.screen').innerText.includes('loss')")
            killed = pipeline.workers()[1]
            await asyncio.to_thread(kill, killed)
            await tab.until("document.querySelector('.events .fault')?.innerText.includes('signal 9')")
            cause = "document.querySelector('.events .fault details p')?.textContent"
            await tab.until(f"{cause}.includes('ended (signal 9)')")
            await tab.until("document.querySelector('.events .round').innerText.includes('round 2')")
            await tab.until("document.querySelectorAll('.rank .meter').length === 2")
            await tab.value("document.querySelector('button[aria-label=\"one node less\"]').click()")
            await tab.until("document.querySelector('dialog .good')")
            await tab.value("document.querySelector('dialog .good').click()")
            await tab.until("document.querySelector('dialog').innerText.includes('everstep scale run/train --nodes 1')")
            await tab.value("document.querySelector('dialog').close()")
            await tab.until("document.querySelectorAll('.rank .meter').length === 1")
            # Before, the rank may still be one of the round that is over, which ends before its stack is read.
            await tab.until("/round 3, 1 node.*training again/.test(document.querySelector('.events').innerText)")
            await tab.value(
                "[...document.querySelectorAll('.buttons button')].find((one) => one.innerText === 'Stacks').click()"
            )
            await tab.until("document.querySelector('dialog pre')?.innerText.includes('.py')")
            await tab.value("document.querySelector('dialog').close()")
            await tab.value(
                "[...document.querySelectorAll('.buttons button')].find((one) => one.innerText === 'Stop').click()"
            )
            await tab.value("document.querySelector('dialog .bad').click()")
            await tab.until("document.querySelector('main .pill').innerText.includes('failed')")
            assert tab.problems == []

    asyncio.run(watch())
