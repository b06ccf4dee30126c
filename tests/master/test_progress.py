"""What is shown of a job: a function of its states and its workers' telemetry."""

from everstep.runtime.job.state import State
from everstep.runtime.master.progress import Progress, Reporter
from everstep.runtime.protocol.messages import Heartbeat
from everstep.runtime.protocol.rounds import Member, Round

MEMBERS = {"worker": (Member("worker-0-0", "h", "a:1", 1), Member("worker-1-0", "h", "a:1", 1))}
RUNNING = State(round=Round(3, MEMBERS, "a", 1, None, "both joined"), iteration=5, reason="both joined")


def progress_of(*lines: dict[str, float | int | str]) -> list[Progress]:
    reports: list[Progress] = []
    reporter = Reporter(reports.append, RUNNING)
    reporter.on_telemetry(Heartbeat("worker-0-0", 3, telemetry=lines))
    return reports


def test_the_newest_iteration_of_the_running_round_is_shown() -> None:
    lines = ({"round": 3, "iteration": 6, "loss": -0.5}, {"round": 2, "iteration": 9, "loss": 1.0})
    assert progress_of(*lines) == [Progress(6, 2, 3, "both joined", -0.5)]


def test_stall_is_the_share_of_the_iterations_time_that_saving_took() -> None:
    first = {"round": 3, "iteration": 6, "loss": 1.0, "seconds": 3.0, "stall_s": 0.03}
    second = {"round": 3, "iteration": 7, "loss": 1.0, "seconds": 1.0, "stall_s": 0.01}
    (progress,) = progress_of(first, second)
    assert progress.stall is not None
    assert round(progress.stall, 9) == 1.0


def test_what_a_script_reports_under_our_names_need_not_be_a_number() -> None:
    (progress,) = progress_of({"round": 3, "iteration": 6, "loss": "low", "seconds": "long", "stall_s": -1})
    assert progress == Progress(6, 2, 3, "both joined", None)


def test_what_changes_nothing_is_not_told() -> None:
    assert progress_of({"round": 3, "iteration": 6}) == []
