"""What the pages say is there: links, flags, make targets, and the reference that is made from the code."""

import argparse
import importlib
import re
from collections.abc import Callable
from pathlib import Path

import pytest

from docs.rendering import PAGES as RENDERED
from docs.rendering import environment, flags
from everstep.cli.main import VERBS
from tests.docs.pages import NAMES, PAGES, commands, headings, inline_commands, links
from tests.docs.shell import FILE as SAVED
from tests.harness import ROOT

TARGETS = set(re.findall(r"^([a-z0-9-]+):", (ROOT / "Makefile").read_text(), re.MULTILINE))
PARSERS: dict[str, argparse.ArgumentParser] = {
    parser.prog: parser for parser in (*flags.verb_parsers(), *map(flags.step_parser, flags.STEPS))
}


@pytest.mark.parametrize("page", PAGES, ids=NAMES)
def test_what_a_page_links_to_is_there(page: Path) -> None:
    for path, heading in links(page):
        target = (page.parent / path).resolve() if path else page
        assert target.exists(), f"{path}: no such file"
        if heading and target.suffix == ".md":
            assert heading in headings(target), f"{path}#{heading}: no such heading"


def unknown_flags(words: list[str], parser: argparse.ArgumentParser) -> list[str]:
    """The words that look like flags and that the parser does not have."""
    flags_used = [word.partition("=")[0] for word in words if re.match(r"--?[a-zA-Z]", word)]
    return [flag for flag in flags_used if flag.replace("_", "-") not in parser._option_string_actions]


def of_script(words: list[str]) -> list[str]:
    """Without what follows a launched script: these flags are its own."""
    for number, word in enumerate(words):
        if word.endswith(".py"):
            return words[:number]
    return words


def pipeline_parser(path: str) -> argparse.ArgumentParser | None:
    """The parser of a pipeline; None for a script of another kind, or one that is not in the repository."""
    if not (ROOT / path).exists() or "everstep.submit(" not in (ROOT / path).read_text():
        return None
    module = importlib.import_module(
        path.removesuffix(".py").replace("/", ".").replace("pipelines.", "everstep.pipelines.")
    )
    return flags.pipeline_parser(module.Config)


def problems(words: list[str]) -> list[str]:
    """What is wrong with that command, if it is one of ours."""
    if words[0] == "make":
        return [word for word in words[1:] if not word.startswith("-") and "=" not in word and word not in TARGETS]
    if words[0] == "everstep":
        if words[1].startswith("-"):
            return [] if words[1] in ("--help", "--version") else words[1:2]
        if words[1] not in VERBS or len(words) == 2:
            return [] if words[1] in VERBS else words[1:2]
        prog = next((name for name in (" ".join(words[:3]), " ".join(words[:2])) if name in PARSERS), "")
        return unknown_flags(of_script(words[2:]), PARSERS[prog]) if prog else words[:3]
    if words[:2] == ["python", "-m"] and len(words) > 2:
        if words[2].startswith("everstep.steps.") and not words[2].endswith(".NAME"):
            return unknown_flags(words[3:], PARSERS[" ".join(words[:3])])
        is_ours = words[2].startswith(("benchmarks.", "tests.", "supply.", "docs."))
        return [words[2]] if is_ours and not _is_module(words[2]) else []
    if words[0] == "python" and (parser := pipeline_parser(words[1])):
        return unknown_flags(words[2:], parser)
    return []


def _is_module(name: str) -> bool:
    path = ROOT / name.replace(".", "/")
    return path.is_dir() or path.with_suffix(".py").is_file()


@pytest.mark.parametrize("page", PAGES, ids=NAMES)
def test_each_command_that_a_page_shows_has_the_flags_that_it_shows(page: Path) -> None:
    shown = [*commands(page), *inline_commands(page)]
    wrong = {" ".join(words): bad for words in shown if (bad := problems(words))}
    assert wrong == {}


def test_a_command_that_is_not_there_is_noticed() -> None:
    assert problems(["make", "nothing"]) == ["nothing"]
    assert problems(["everstep", "run"]) == ["run"]
    assert problems(["everstep", "workflow", "run", "--nonsense", "f"]) == ["--nonsense"]
    assert problems(["everstep", "launch", "--nnodes", "1", "train.py", "--own"]) == []
    assert problems(["python", "-m", "everstep.steps.train", "--nonsense=1"]) == ["--nonsense"]
    assert problems(["python", "pipelines/llama_finetune.py", "--nonsense"]) == ["--nonsense"]


@pytest.mark.parametrize(("name", "render"), RENDERED.items(), ids=RENDERED)
def test_the_reference_is_what_the_code_says(name: str, render: Callable[[], str]) -> None:
    """To mend: make reference."""
    assert (ROOT / f"docs/reference/{name}.md").read_text() == render()


def test_every_variable_of_the_code_is_in_the_reference() -> None:
    assert environment.names_in_code() == set(environment.KNOWN)


def test_the_readme_is_short() -> None:
    assert len((ROOT / "README.md").read_text().splitlines()) < 150


@pytest.mark.parametrize("page", ["README.md", "docs/figures.md"])
def test_every_figure_names_the_command_that_measures_it(page: str) -> None:
    tables = re.findall(r"^\|.*`.*benchmarks\..*\|\n\|[-|]+\n((?:\|.*\n)+)", (ROOT / page).read_text(), re.MULTILINE)
    rows = "".join(tables).splitlines()
    assert len(rows) >= 10
    for row in rows:
        words = row.rstrip("| ").rpartition("|")[2].strip(" `").split()
        path = ROOT / f"benchmarks/{words[0].replace('.', '/')}.py"
        assert path.is_file(), row
        assert [flag for flag in words if flag.startswith("--") and f'"{flag}"' not in path.read_text()] == [], row


@pytest.mark.parametrize("page", PAGES, ids=NAMES)
def test_every_file_of_the_repository_that_a_page_names_is_there(page: Path) -> None:
    folders = "runtime|steps|everstep|pipelines|examples|supply|tests|benchmarks|templates|docs"
    named = re.findall(rf"`((?:{folders})/[\w/.-]+)`", page.read_text())
    assert [name for name in named if not (ROOT / name).exists()] == []


OTHERS = {"preprocess_data.py"}
"""Modules of other programs that a page names."""
MODULES = [
    f"/{path.relative_to(ROOT)}"
    for folder in ("runtime", "steps", "everstep", "pipelines", "examples", "supply", "tests", "benchmarks", "docs")
    for path in (ROOT / folder).rglob("*.py")
]


@pytest.mark.parametrize("page", PAGES, ids=NAMES)
def test_every_module_that_a_page_names_by_its_end_is_there(page: Path) -> None:
    text = page.read_text()
    named = set(re.findall(r"`([\w/]+\.py)`", text)) - set(SAVED.findall(text)) - OTHERS
    assert [name for name in named if not any(path.endswith(f"/{name}") for path in MODULES)] == []
