"""`make ui-picture`: docs/pictures/ui.png, the page of `everstep ui` in Chromium, just after a worker was killed."""

import asyncio
import tempfile
from pathlib import Path

from docs.rendering.source import ROOT
from tests import chromium
from tests.harness import Pipeline, kill, wait_until
from tests.ui.page_server import TOKEN, serve_page

SIZE = (1080, 750)
"""CSS pixels."""
PATIENCE_S = 1800.0
"""Of each wait: on a busy machine the steps before the training take many minutes."""


async def shoot(pipeline: Pipeline, picture: Path) -> None:
    """Kill a worker of the run, and write the picture once both train again."""
    async with serve_page(pipeline.folder.parent) as address, chromium.open_tab(f"{address}/#{TOKEN}") as tab:
        await tab.size(*SIZE)
        await tab.call("Emulation.setScrollbarsHidden", hidden=True)
        await tab.until("document.querySelectorAll('.rank .meter').length === 2", PATIENCE_S)
        await tab.until("document.querySelector('.loss .curve')", PATIENCE_S)
        await asyncio.to_thread(kill, pipeline.workers()[1])
        await tab.until("document.querySelector('.events .round').innerText.includes('round 2')", PATIENCE_S)
        await tab.until("document.querySelectorAll('.rank .meter').length === 2", PATIENCE_S)
        await asyncio.to_thread(wait_iteration, pipeline, 60)
        await tab.picture(picture)


def wait_iteration(pipeline: Pipeline, iteration: int) -> None:
    """Until a worker has reached it. Raises RuntimeError with the end of the logs if the run ends before."""
    wait_until(lambda: pipeline.iteration() >= iteration or pipeline.over(), f"iteration {iteration}", PATIENCE_S)
    if pipeline.over():
        raise RuntimeError(f"the run ended before iteration {iteration}: {pipeline.last_words()}")


def main() -> None:
    """Train, shoot, end."""
    with tempfile.TemporaryDirectory(prefix="everstep-picture-") as place:
        folder = Path(place, "runs", "llama-finetune")
        pipeline = Pipeline(
            folder, folder.parent / "store", name=folder.name, flags=("--iterations", "2000", "--nodes", "2")
        )
        try:
            pipeline.start()
            wait_iteration(pipeline, 20)
            asyncio.run(shoot(pipeline, ROOT / "docs" / "pictures" / "ui.png"))
        finally:
            pipeline.kill_all()


if __name__ == "__main__":
    main()
