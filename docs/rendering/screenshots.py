"""`make screenshots RUN=NAME`: docs/pictures/report-wide.png, a run's page in Chromium."""

import argparse
import asyncio
from pathlib import Path

from docs.rendering.source import ROOT
from tests import chromium

SIZE = (1200, 1500)
"""CSS pixels."""
LEDGER = "document.querySelector('.ledger').closest('section').previousElementSibling.scrollIntoView()"
"""A picture begins here: above stand paths of the machine that ran it."""


async def shoot(page: Path, picture: Path) -> None:
    """Write the picture."""
    async with chromium.open_tab(page.resolve().as_uri()) as tab:
        await tab.until("document.querySelector('h1')")
        await tab.size(*SIZE)
        await tab.call("Emulation.setScrollbarsHidden", hidden=True)
        await tab.value(LEDGER)
        await tab.picture(picture)


def main() -> None:
    """Read the command line."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("page", type=Path, help="runs/NAME/report.html")
    asyncio.run(shoot(parser.parse_args().page, ROOT / "docs" / "pictures" / "report-wide.png"))


if __name__ == "__main__":
    main()
