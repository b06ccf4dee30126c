"""A loss that is no number: right after a restore it ends the worker, for what was restored may be broken."""

import math
from types import SimpleNamespace
from typing import Any

import pytest
import torch

from everstep.runtime.exit_codes import ExitCode
from everstep.runtime.job.fault_policy import reason_of
from everstep.runtime.job.reasons import Reason
from everstep.runtime.protocol.worker_link import Welcome
from everstep.session import WATCHED, Context, Session


def session(restored: int, iteration: int, messages: list[Any] | None = None, certifies: bool = False) -> Any:
    welcome = Welcome("job", "store", certifies=certifies)
    link: Any = SimpleNamespace(tell=[].append if messages is None else messages.append, welcome=welcome)
    checkpointer: Any = SimpleNamespace(restored=restored, stall_s=0.0, staged_bytes=0)
    return Session(Context(0, 1, 0, torch.device("cpu"), 2, link), checkpointer, iteration)


@pytest.mark.parametrize("loss", [math.nan, math.inf, -math.inf])
def test_right_after_a_restore_the_worker_says_so_and_ends(loss: float, capfd: Any) -> None:
    with pytest.raises(SystemExit) as raised:
        session(7, 7 + WATCHED).send({"loss": loss})
    assert raised.value.code == ExitCode.DIVERGED
    assert reason_of(ExitCode.DIVERGED) is Reason.DIVERGED
    assert "right after iteration 7 was restored; this worker exits" in capfd.readouterr().err


def test_where_states_are_certified_the_agent_reports_it_and_the_worker_goes_on() -> None:
    reports: list[Any] = []
    session(7, 8, reports, certifies=True).send({"loss": math.nan})
    assert [report.iteration for report in reports] == [8]


def test_later_or_without_a_restore_it_is_the_trainings_own_matter() -> None:
    messages: list[Any] = []
    session(7, 8 + WATCHED, messages).send({"loss": math.nan})
    session(0, 1, messages).send({"loss": math.nan})
    session(7, 8, messages).send({"loss": 1.5})
    session(7, 8, messages).send({"grad_norm": math.nan})
    assert [report.iteration for report in messages] == [8 + WATCHED, 1, 8, 8]
