"""A warm spare rehearses one iteration, with nobody and without a trace."""

from pathlib import Path

import pytest

from tests.forks import Forks

SCRIPT = Path(__file__).with_name("rehearsing_script.py")


@pytest.mark.parametrize(("kind", "iterations"), [("ddp", 1), ("fsdp", 1), ("silent", 2)])
def test_a_rehearsal_ends_after_an_iteration_and_leaves_nothing(
    kind: str, iterations: int, tmp_path: Path, forks: Forks
) -> None:
    out = tmp_path / "out"
    number = forks.start([str(SCRIPT), kind, str(out)], {}, tmp_path / "err")
    assert forks.wait(number) == 0, (tmp_path / "err").read_text()
    assert out.read_text() == repr(("", iterations, False, kind == "ddp"))
