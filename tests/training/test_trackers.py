"""Figures of each iteration go to experiment trackers, too: rank 0's, finite numbers alone."""

import math

import pytest

torch = pytest.importorskip("torch")

from everstep.session import Context, Session  # noqa: E402
from everstep.trackers import figures, open_tracker  # noqa: E402


def session_of(rank: int) -> tuple[Session, list[tuple[int, dict[str, float]]]]:
    """A session whose tracker is the list."""
    session, written_values = (
        Session(Context(rank, 2, rank, torch.device("cpu"), 1)),
        list[tuple[int, dict[str, float]]](),
    )
    session.trackers["own"] = lambda iteration, values: written_values.append((iteration, dict(values)))
    return session, written_values


def test_a_tracker_gets_each_iterations_figures() -> None:
    session, written_values = session_of(0)
    session.iteration = 3
    session.report({"loss": 2.5, "note": "text"})
    session.send({"seconds": 0.5})
    assert written_values == [(3, {"seconds": 0.5, "stall_s": 0.0, "loss": 2.5})]


def test_another_rank_writes_nothing() -> None:
    session, written_values = session_of(1)
    session.report({"loss": 2.5})
    session.send({"seconds": 0.5})
    assert written_values == []


def test_what_is_no_finite_number_is_no_figure() -> None:
    line = {"loss": math.nan, "gradient": math.inf, "note": "a", "joined_at": 1.0, "tokens": 4}
    assert figures(line) == {"tokens": 4.0}


def test_a_tracker_that_is_not_installed_is_named_with_the_mend() -> None:
    with pytest.raises(ImportError, match="pip install mlflow"):
        open_tracker("mlflow", "")


def test_a_tracker_that_nobody_knows_is_refused() -> None:
    with pytest.raises(ValueError, match="give tensorboard, mlflow, wandb, or a function"):
        open_tracker("sheet", "")  # type: ignore[arg-type]
