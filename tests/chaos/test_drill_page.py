"""The drill's page in a real browser: each cell can be read at any width, without scrolling sideways."""

import asyncio
from pathlib import Path

from everstep.runtime.report.history import Point
from everstep.steps.verdict.compare import FinalState, Training, refused_row, row
from everstep.steps.verdict.config import Config, Experiment
from everstep.steps.verdict.run import write_page
from tests import chromium

pytestmark = chromium.NEEDED
CUT = """[...document.querySelectorAll("main *")].filter((one) => one.checkVisibility() &&
  one.getBoundingClientRect().right > innerWidth + 0.5).map((one) => one.outerHTML.slice(0, 80))"""


def test_no_cell_is_cut_at_the_edge_of_a_phone(tmp_path: Path) -> None:
    fired = {"kind": "crash", "node": "worker-1-0", "time": 2.5, "evidence": "SIGKILL of process 12345; ended"}
    points = [Point(float(number), 1, number, 9.0 - number) for number in (1, 2, 3)]
    training = Training(points, FinalState(3, frozenset({(0, "digest")}), 8), "succeeded")
    experiment = Experiment("process-crash", seconds=5, lost=1)
    rows = [
        row(experiment, fired, "", training, training, 0.02),
        row(experiment, None, "it did not fire; see the log of its step", training, training, 0.02),
        refused_row(Experiment("network-loss", seconds=5, lost=1), "/sys/fs/cgroup/" + "long/" * 40),
    ]
    page = write_page(Config(outputs=str(tmp_path)), rows, {"reference": training})

    async def look() -> None:
        async with chromium.open_tab(page.as_uri()) as tab:
            await tab.until("document.querySelector('h1')")
            for width in (390, 800, 1440):
                await tab.size(width, 900, dark=False)
                assert await tab.value(CUT) == [], width
                words = await tab.value("document.querySelector('td').innerText")
                assert words == "process-crash"
            await tab.size(390, 900, dark=False)
            first = await tab.value("getComputedStyle(document.querySelector('td'), '::before').content")
            assert "experiment" in first, "each cell says what it is"

    asyncio.run(look())
