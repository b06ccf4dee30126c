"""What `make test` does with tests that fail: which are races, and what is told of them."""

import os
import re
import subprocess
import sys
from pathlib import Path

import pytest

from tests.harness import ROOT
from tests.parts import TESTS, NoPartError, files_with_long, paths_of, too_long
from tests.suite import Failure, seen_names, tell_races

CONFTEST = "import hypothesis\nhypothesis.settings.register_profile('dev', deadline=None)\n"
FLAKES = """
import pathlib
def test_fails_the_first_time():
    mark = pathlib.Path(__file__).with_name("ran")
    before = mark.exists()
    mark.touch()
    assert before, "somebody else was faster"
"""
FAILS = "def test_fails_always():\n    assert False, 'wrong'\n"
MANY = "import pytest\n@pytest.mark.parametrize('number', range(4))\ndef test_fails(number):\n    assert False, 'all'\n"
PROGRAM = """
import sys
from pathlib import Path
from tests import suite
from tests.suite import Selection, run
suite.TIMES_ALONE = 2
folder = Path(sys.argv[1])
sys.exit(run(Selection([str(folder)], jobs=0), folder / "cache", folder / "seen.txt"))
"""


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    """A folder of tests, none of which is known to flake."""
    (tmp_path / "conftest.py").write_text(CONFTEST)
    (tmp_path / "seen.txt").write_text("# date, name, cause\n")
    return tmp_path


def suite(folder: Path) -> tuple[int, str]:
    """Exit code and output."""
    command = [sys.executable, "-c", PROGRAM, str(folder)]
    environment = {**os.environ, "PYTHONPATH": str(ROOT)}
    completed = subprocess.run(command, cwd=folder, env=environment, text=True, capture_output=True, timeout=240)
    return completed.returncode, completed.stdout + completed.stderr


def test_a_race_is_told_and_written_down_and_the_second_sighting_fails_the_run(folder: Path) -> None:
    (folder / "test_it.py").write_text(FLAKES)
    code, output = suite(folder)
    assert code == 0, output
    flaky = [line for line in output.splitlines() if line.startswith("FLAKY ")]
    assert len(flaky) == 1
    assert flaky[0].endswith("test_it.py::test_fails_the_first_time AssertionError: somebody else was faster")
    (sighting,) = (folder / "cache/flaky").iterdir()
    assert all(word in sighting.read_text() for word in ("seed ", "load ", "somebody else was faster"))
    assert len(seen_names(folder / "seen.txt")) == 1

    (folder / "ran").unlink()
    code, output = suite(folder)
    assert code == 1
    assert "seen flaking before, mend first" in output


def test_what_fails_alone_too_fails_the_run(folder: Path) -> None:
    (folder / "test_it.py").write_text(FAILS)
    code, output = suite(folder)
    assert code == 1
    assert "FAILED alone, too: " in output
    assert "FLAKY" not in output


def test_more_failures_than_three_are_no_races(folder: Path) -> None:
    (folder / "test_it.py").write_text(MANY)
    code, output = suite(folder)
    assert code == 1
    assert "4 tests failed: too many for races" in output
    assert "alone, 1 of " not in output


def test_a_race_seen_once_stays_known_by_one_line(tmp_path: Path) -> None:
    flaky_list, race = tmp_path / "seen.txt", Failure("tests/a.py::test_b[c d]", "TimeoutError: 3 s", "...", 2.5)
    flaky_list.write_text("")
    assert tell_races([race], 7, tmp_path / "flaky", flaky_list) == 0
    assert seen_names(flaky_list) == {race.name}
    assert tell_races([race], 7, tmp_path / "flaky", flaky_list) == 1
    assert flaky_list.read_text().count("\n") == 1


def test_a_part_brings_the_tests_of_what_imports_it() -> None:
    assert paths_of("store")[0] == "tests/store"
    assert {"tests/checkpoint", "tests/data", "tests/master"} <= set(paths_of("store"))
    assert "tests/store" not in paths_of("text")
    with pytest.raises(NoPartError, match="PART=chekpoint: no folder of tests; there are agent, "):
        paths_of("chekpoint")


def test_files_with_long_tests_name_the_mark_or_their_conftest_does() -> None:
    files = files_with_long()
    assert "tests/survival/test_own_datasets.py" in files, "by its conftest"
    assert "tests/watch/test_slow_rank.py" in files
    assert "tests/watch/test_top_table.py" not in files
    assert not [file for file in files if file.startswith("tests/cluster/")], "not of `make test-long`"
    left_out = ("cluster", "images", "prometheus", "frameworks")
    others = [
        path for path in TESTS.rglob("test_*.py") if path.parent.name not in left_out and path.name != "test_suite.py"
    ]
    others = [path for path in others if str(path.relative_to(TESTS.parent)) not in files]
    assert [path.name for path in others if re.search(r"@LONG|marks=.*LONG|mark\.long\b", path.read_text())] == []


def test_of_other_parts_the_longest_tests_are_left_out_where_time_is_short(tmp_path: Path) -> None:
    cases = [("tests/text/test_a.py", 50), ("tests/corpus/test_b.py", 30), ("tests/corpus/test_c.py", 9)]
    lines = [f'<testcase file="{file}" name="test_it" time="{seconds}"/>' for file, seconds in cases]
    (tmp_path / "tests.xml").write_text(f"<testsuite>{''.join(lines)}</testsuite>")
    assert too_long("text", tmp_path / "tests.xml", 70) == {"tests/corpus/test_b.py::test_it": 30}
    assert too_long("text", tmp_path / "tests.xml", 100) == {}
    assert too_long("text", tmp_path / "absent.xml", 0) == {}
