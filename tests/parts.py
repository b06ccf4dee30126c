"""Which tests a change of one part can break: its own, and those of what imports it.

A part is a folder of tests. What it tests is named like it: `runtime/NAME`, `steps/NAME`, or what OTHERS says. Of the
others' tests, those that took longest in the last whole run are left to `make test`.
"""

import tomllib
from functools import cache
from pathlib import Path
from xml.etree import ElementTree

import grimp

TESTS = Path(__file__).parent
OTHERS = {
    "everstep": ("face", "training", "ui"),
    "pipelines": ("survival",),
    "everstep.steps.entry": ("steps",),
    "everstep.steps.template": ("steps",),
}
"""Packages that are tested by folders of other names."""


class NoPartError(ValueError):
    """There is no such folder of tests; says which there are."""


def paths_of(part: str) -> list[str]:
    """Folders of tests, as of the project's root. Raises NoPartError."""
    if part not in folders():
        raise NoPartError(f"PART={part}: no folder of tests; there are {', '.join(sorted(folders()))}")
    mine = {package for package in packages() if part in tested_by(package)}
    near = {user for package in mine for user in users()[package]}
    names = [part, *sorted({name for package in near - mine for name in tested_by(package)} - {part})]
    return [f"tests/{name}" for name in names]


def too_long(part: str, report_file: Path, seconds: float) -> dict[str, float]:
    """Tests of other folders than the part's own, and their seconds, that do not fit beside it in so many seconds.

    `report_file`: how the last whole run ended, as JUnit XML; where there was none, nothing is known to take long.
    """
    cases = ElementTree.parse(report_file).iter("testcase") if report_file.exists() else ()
    took = {f"{case.get('file')}::{case.get('name')}": float(case.get("time", 0)) for case in cases}
    own, *others = (f"{path}/" for path in paths_of(part))
    seconds_left = seconds - sum(time for name, time in took.items() if name.startswith(own))
    theirs = sorted((time, name) for name, time in took.items() if name.startswith(tuple(others)))
    times = {}
    for time, name in theirs:
        seconds_left -= time
        if seconds_left < 0:
            times[name] = time
    return times


def files_with_long() -> list[str]:
    """The files that have `long` tests: they name the mark, or a conftest.py that is theirs does.

    Each of pytest's workers imports all files that it is told of, which takes longer than most tests.
    """
    settings = tomllib.loads((TESTS.parent / "pyproject.toml").read_text())["tool"]["pytest"]["ini_options"]
    files = [path.relative_to(TESTS) for path in sorted(TESTS.rglob("test_*.py"))]
    return [
        f"tests/{file}"
        for file in files
        if file.parts[0] not in settings["norecursedirs"]
        and any(_names_long(TESTS / place) for place in (file, *(above / "conftest.py" for above in file.parents)))
    ]


def _names_long(path: Path) -> bool:
    return path.exists() and "pytest.mark.long" in path.read_text()


@cache
def folders() -> frozenset[str]:
    """Of tests."""
    return frozenset(path.name for path in TESTS.iterdir() if any(path.glob("test_*.py")))


def tested_by(package: str) -> tuple[str, ...]:
    """The folders with a package's tests."""
    return OTHERS.get(package) or tuple({package.rpartition(".")[2]} & folders())


@cache
def packages() -> frozenset[str]:
    """`everstep.runtime.job`, `everstep.steps.train`, `everstep`..."""
    return frozenset(_package(module) for module in _graph().modules)


@cache
def users() -> dict[str, set[str]]:
    """For each package those that import it themselves."""
    graph, users_by_package = _graph(), {package: set[str]() for package in packages()}
    for module in graph.modules:
        for user in graph.find_modules_that_directly_import(module):
            if _package(user) != _package(module):
                users_by_package[_package(module)].add(_package(user))
    return users_by_package


def _package(module: str) -> str:
    match module.split("."):
        case ["everstep", "runtime" | "steps" as room, name, *_]:
            return f"everstep.{room}.{name}"
        case ["everstep", "runtime" | "steps" | "pipelines" as room, *_]:
            return f"everstep.{room}"
    return "everstep"


@cache
def _graph() -> grimp.ImportGraph:
    return grimp.build_graph("everstep")
