"""`make screenshots RUN=NAME`: pictures of a run's page in Chromium, for the docs: light on a desk, dark on a phone."""

import argparse
import asyncio
from pathlib import Path

from docs.rendering.source import ROOT
from tests import chromium

SHOTS = (("report-wide", 1200, 1500, False), ("report-phone", 390, 1200, True))
"""(name, width, height in CSS pixels, dark)."""
LEDGER = "document.querySelector('.ledger').closest('section').previousElementSibling.scrollIntoView()"
"""A picture begins here: above stand paths of the machine that ran it."""


async def shoot(page: Path, folder: Path) -> None:
    """Write the pictures."""
    async with chromium.open_tab(page.resolve().as_uri()) as tab:
        await tab.until("document.querySelector('h1')")
        for name, width, height, dark in SHOTS:
            await tab.size(width, height, dark=dark)
            await tab.call("Emulation.setScrollbarsHidden", hidden=True)
            await tab.value(LEDGER)
            path = folder / f"{name}.png"
            await tab.picture(path)
            print(f"{path}: {path.stat().st_size / 1000:.0f} kB")


def main() -> None:
    """Read the command line."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("page", type=Path, help="runs/NAME/report.html")
    asyncio.run(shoot(parser.parse_args().page, ROOT / "docs" / "pictures"))


if __name__ == "__main__":
    main()
