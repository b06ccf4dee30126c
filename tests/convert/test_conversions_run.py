"""Each kind of job, converted, runs here, with stand-ins for what its image has."""

from pathlib import Path

import pytest

from tests.convert.stand_ins import LAUNCHERS, PYTHON, RANKS, SCRIPTS, SMALL, ranks_in, run_converted, smaller


@pytest.mark.long
@pytest.mark.parametrize("name", SMALL)
def test_each_kind_runs_here_with_stand_ins_for_its_image(name: str, tmp_path: Path) -> None:
    (tmp_path / "job.yaml").write_text(smaller(name))
    logs = run_converted(tmp_path, {"python": PYTHON, **LAUNCHERS}, SCRIPTS)
    assert ranks_in(logs) == RANKS.get(name, 2), logs[-5000:]
