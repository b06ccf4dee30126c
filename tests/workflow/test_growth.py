"""Twice the nodes are twice the work: counted in calls, not in time. `benchmarks/executor.py` measures the time."""

import cProfile
import pstats
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from benchmarks.executor import SHAPES, chain, engine_s
from everstep.runtime.workflow.run import status


def calls(manifest: dict[str, Any]) -> int:
    """Function calls for a run of that manifest, nothing really started."""
    profile = cProfile.Profile()
    profile.runcall(engine_s, manifest)
    return sum(statistic[1] for statistic in pstats.Stats(profile).stats.values())  # pyright: ignore[reportAttributeAccessIssue]


@pytest.mark.parametrize(("name", "shape"), SHAPES, ids=[name for name, _ in SHAPES])
def test_the_engine_does_twice_the_work_for_twice_the_nodes(name: str, shape: Callable[[int], dict[str, Any]]) -> None:
    calls(shape(6))  # What is read once for all: grammars, schemas.
    assert calls(shape(600)) < 2.2 * calls(shape(300)), name


def test_a_status_that_takes_long_to_write_is_written_less_often(tmp_path: Path) -> None:
    _, engine = engine_s(chain(3))
    moments = iter([10.0, 10.001, 20.0, 20.5])
    writer = status.StatusWriter(engine, tmp_path, clock=lambda: next(moments))
    writer.write()
    assert writer.every_s == status.WRITE_EVERY_S
    writer.write()
    assert writer.every_s == pytest.approx(0.5 / status.WRITE_SHARE)
