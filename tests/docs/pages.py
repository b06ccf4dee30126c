"""The pages of the documentation, their links and their commands."""

import re
import shlex
from collections.abc import Iterator
from contextlib import suppress
from itertools import product
from pathlib import Path

from tests.harness import ROOT

PAGES = sorted([*ROOT.glob("*.md"), *(ROOT / "docs").rglob("*.md"), *(ROOT / ".github").rglob("*.md")])
NAMES = [str(page.relative_to(ROOT)) for page in PAGES]
_FENCE = re.compile(r"^```(\w*|\{[^}]*\}.*)\n(.*?)^```$", re.MULTILINE | re.DOTALL)
_LINK = re.compile(r"\]\(([^)\s]+)\)")


def blocks(page: Path, *kinds: str) -> Iterator[str]:
    """The fenced blocks of these languages; "" is a block without one."""
    yield from (text for kind, text in _FENCE.findall(page.read_text()) if kind in kinds)


def commands(page: Path) -> Iterator[list[str]]:
    """Each simple command of the blocks of shell, as words; comments, variables and redirections are left out."""
    for block in blocks(page, "", "sh"):
        text = re.sub(r"<<'END'\n.*?\nEND\n", "\n", block.replace("\\\n", " "), flags=re.DOTALL)
        for line in text.splitlines():
            for part in re.split(r"\s*(?:\||;|&&)\s+", re.sub(r"(^|\s)#.*", "", line)):
                try:
                    words = shlex.split(re.sub(r"\$\([^)]*\)?|\s>\s?\S+", " X", part).strip())
                except ValueError:
                    continue
                while words and re.fullmatch(r"export|\w+=.*", words[0]):
                    words.pop(0)
                if words:
                    yield words


def inline_commands(page: Path) -> Iterator[list[str]]:
    """Each command of ours that the text, a table or a list of the page names, as words; of `a|b` each."""
    for code in re.findall(r"`((?:everstep|make|python) [^`]+)`", _FENCE.sub("", page.read_text())):
        with suppress(ValueError):  # No whole command: a quotation mark is open.
            words = shlex.split(re.sub(r"\s[<>|].*|\\(?=\|)|\.\.\.$", "", " ".join(code.split())))
            yield from map(list, product(*(word.split("|") for word in words)))


def links(page: Path) -> Iterator[tuple[str, str]]:
    """(path, heading) of each link that stays in the repository; an empty path is the page itself."""
    text = _FENCE.sub("", page.read_text())
    for target in _LINK.findall(text):
        if "://" not in target and not target.startswith("mailto:"):
            path, _, heading = target.partition("#")
            yield path, heading


def headings(page: Path) -> set[str]:
    """The anchors of a page, as GitHub makes them."""
    lines = re.findall(r"^#+ (.*)$", _FENCE.sub("", page.read_text()), re.MULTILINE)
    return {re.sub(r"[^\w\- ]", "", line.lower()).replace(" ", "-") for line in lines}
