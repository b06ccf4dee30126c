"""The built site in a real browser, from files alone: no page is wider than its window, and the search finds pages."""

import asyncio
import os
import subprocess
import sys
from pathlib import Path

import pytest

from tests import chromium
from tests.harness import PATIENCE_S, ROOT

pytestmark = [chromium.NEEDED, pytest.mark.long]
WIDTHS = (390, 1440)
TOO_WIDE = """[...document.querySelectorAll("article *")].filter((one) => one.checkVisibility() &&
  !one.closest(".table-wrapper, table, pre, svg") && one.getBoundingClientRect().right > innerWidth + 0.5)
  .map((one) => one.outerHTML.slice(0, 120))
  .concat(document.documentElement.scrollWidth > innerWidth ? ["the page"] : [])"""
CUT = """[...document.querySelectorAll("article table")].filter((one) => one.scrollWidth > one.clientWidth + 1 &&
  !["auto", "scroll"].includes(getComputedStyle(one).overflowX) && !one.closest(".table-wrapper"))
  .map((one) => one.innerText.slice(0, 80))"""
NO_PICTURE = "[...document.images].filter((one) => one.complete && !one.naturalWidth).map((one) => one.src)"
FOREIGN = """performance.getEntriesByType("resource").map((one) => one.name)
  .filter((name) => !name.startsWith("file:") && !name.startsWith("data:"))"""


@pytest.fixture(scope="module")
def site(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The folder of the built site: where whoever runs the tests has just built it, or here."""
    if built := os.environ.get("EVERSTEP_SITE"):
        return Path(built)
    folder = tmp_path_factory.mktemp("site")
    words = [sys.executable, "-m", "sphinx", "--quiet", "--fail-on-warning", "--nitpicky", "docs", str(folder)]
    completed = subprocess.run(words, cwd=ROOT, capture_output=True, text=True, check=False, timeout=3 * PATIENCE_S)
    assert completed.returncode == 0, completed.stderr
    return folder


def test_no_page_is_wider_than_a_phone_or_a_desk_and_nothing_is_fetched(site: Path) -> None:
    pages = sorted(path for path in site.rglob("*.html") if "_static" not in path.parts)
    assert len(pages) > 50

    async def watch() -> dict[str, object]:
        bad: dict[str, object] = {}
        async with chromium.open_tab(pages[0].as_uri()) as tab:
            for page in pages:
                await tab.call("Page.navigate", url=page.as_uri())
                await tab.until(f"location.pathname.endsWith('{page.name}') && document.readyState === 'complete'")
                for width in WIDTHS:
                    await tab.size(width, 900)
                    for what in (TOO_WIDE, CUT, NO_PICTURE, FOREIGN):
                        if found := await tab.value(what):
                            bad[f"{page.relative_to(site)} at {width}"] = found
            assert tab.problems == []
        return bad

    assert asyncio.run(watch()) == {}


def test_the_search_works_from_files(site: Path) -> None:
    async def search(words: str) -> list[str]:
        async with chromium.open_tab(f"{(site / 'search.html').as_uri()}?q={words}") as tab:
            await tab.until("document.querySelector('.search-summary').innerText.startsWith('Search finished')")
            assert tab.problems == []
            return await tab.value("[...document.querySelectorAll('#search-results li a')].map((one) => one.pathname)")

    assert any(path.endswith("/explanation/checkpoints.html") for path in asyncio.run(search("invariants+commit")))
    assert any(path.endswith("/how-to/recover.html") for path in asyncio.run(search("resume")))
