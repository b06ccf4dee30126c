"""What an agent sees without its workers' help: beacons that stand still, kills for want of memory."""

import subprocess
import threading
from pathlib import Path
from time import monotonic

import pytest

from everstep.runtime.agent import pace_watch
from everstep.runtime.agent.pace_watch import WINDOW_S, PaceWatch
from everstep.runtime.agent.progress_monitor import ProgressMonitor
from everstep.runtime.job.liveness import LONG_PHASES
from everstep.runtime.system.oom import OomCounter, own_counter_path
from everstep.runtime.system.tcp_sockets import TcpSocket
from everstep.runtime.watch.board_fields import Board


class KeeperStub:
    """A keeper's beacons, as the test sets them."""

    def __init__(self, workers: int) -> None:
        self.shown = [(0, "", 0, 0.0)] * workers

    def show(self, local_rank: int, iteration: int, phase: str, time: float, times: int = 1) -> None:
        """That worker changes its beacon, so many times since the last call."""
        self.shown[local_rank] = (iteration, phase, self.shown[local_rank][2] + times, time)

    def new_workers(self) -> None:
        """What they count begins anew; their beacons still show what the old ones did."""
        self.shown = [(iteration, phase, 0, time) for iteration, phase, _, time in self.shown]

    def beacon(self, local_rank: int) -> tuple[int, str]:
        """What that worker shows."""
        return self.shown[local_rank][:2]

    def changes(self, local_rank: int) -> tuple[int, float]:
        """How often it changed, and when last."""
        return self.shown[local_rank][2:]


def watching(workers: int) -> tuple[KeeperStub, ProgressMonitor, list[float]]:
    """(keeper, beacons, the time); no worker has shown anything."""
    keeper, now = KeeperStub(workers), [100.0]
    return keeper, ProgressMonitor(keeper, workers, lambda: now[0], is_restored=False), now  # type: ignore[arg-type]


def test_a_node_is_still_from_the_last_movement_of_any_worker_on() -> None:
    keeper, beacons, now = watching(2)
    beacons.begin()
    keeper.show(0, 3, "forward", 100.0)
    keeper.show(1, 3, "backward", 100.0)
    assert beacons.observe()[:3] == (3, "backward", 0.0)
    now[0] = 110.0
    keeper.show(1, 4, "forward", 109.0)
    assert beacons.observe()[:5] == (3, "forward", 0.0, True, True)
    now[0] = 117.0
    assert beacons.observe()[:5] == (3, "forward", 7.0, True, True)
    keeper.show(0, 3, "backward", 116.0)
    assert beacons.observe().still_s == 0.0


def test_the_phase_is_that_of_the_worker_for_which_the_others_wait() -> None:
    boards = [Board(1, 0, 2, 0, 1, iteration=7, phase="torch.save"), Board(1, 1, 2, 1, 1, iteration=7, entered=3)]
    beacons = ProgressMonitor(KeeperStub(2), 2, lambda: 100.0, True, boards.__getitem__)  # type: ignore[arg-type]
    beacons.begin()
    assert beacons.observe()[:2] == (7, "torch.save")


def test_what_may_take_long_is_the_phase_of_the_node_whatever_its_other_workers_show() -> None:
    boards = [Board(1, 0, 2, 0, 1, iteration=7, phase="export"), Board(1, 1, 2, 1, 1, iteration=7)]
    beacons = ProgressMonitor(KeeperStub(2), 2, lambda: 100.0, True, boards.__getitem__)  # type: ignore[arg-type]
    beacons.begin()
    assert beacons.observe()[:2] == (7, "export")


@pytest.mark.parametrize(
    ("own", "seen", "shown"),
    [
        ("step", "evaluation", "evaluation"),
        ("step", "fetch", "fetch"),
        ("step", "process group", "step"),
        ("validation", "evaluation", "validation"),
        ("validation", "fetch", "fetch"),
    ],
)
def test_what_may_take_long_is_seen_unless_the_script_has_a_name_of_its_own_for_it(
    own: str, seen: str, shown: str
) -> None:
    keeper, board = KeeperStub(1), Board(1, 0, 1, 0, 1, phase=seen)
    beacons = ProgressMonitor(keeper, 1, lambda: 100.0, True, lambda _: board)  # type: ignore[arg-type]
    beacons.begin()
    keeper.show(0, 7, own, 100.0)
    assert beacons.observe()[:2] == (7, shown)


def test_the_end_of_a_phase_that_took_long_is_a_movement_once_there_was_progress() -> None:
    keeper, now = KeeperStub(1), [100.0]
    board = [Board(1, 0, 1, 0, 1)]
    beacons = ProgressMonitor(keeper, 1, lambda: now[0], True, lambda _: board[0])  # type: ignore[arg-type]
    beacons.begin()
    for iteration in (1, 2):
        keeper.show(0, iteration, "save", now[0])
        beacons.observe()
    board[0] = Board(1, 0, 1, 0, 1, phase="flush", changes=1)
    beacons.observe()
    now[0] += 900.0
    assert beacons.observe()[1:3] == ("flush", 900.0)
    board[0] = Board(1, 0, 1, 0, 1, changes=2)
    assert beacons.observe()[1:3] == ("save", 0.0)


def test_a_phase_that_comes_again_between_two_looks_is_a_movement() -> None:
    keeper, beacons, now = watching(1)
    beacons.begin()
    keeper.show(0, 0, "start", 99.0)
    for time in (100.0, 105.0, 110.0):
        now[0] = time + 1.0
        keeper.show(0, 0, "backward", time)
        assert beacons.observe().still_s == 0.0


def test_a_worker_that_moved_only_before_the_first_look_stands_still_from_then_on() -> None:
    keeper, beacons, now = watching(2)
    beacons.begin()
    keeper.show(1, 0, "step 2", 99.0, times=4)
    assert beacons.observe().still_s == 0.0
    now[0] += 30.0
    assert beacons.observe().still_s == 30.0


def test_until_the_first_movement_of_a_round_the_time_counts_from_its_start_and_that_is_told() -> None:
    keeper, beacons, now = watching(1)
    for _ in range(2):
        beacons.begin()
        now[0] += 1000.0
        assert beacons.observe()[2:4] == (1000.0, False)
        keeper.show(0, 0, "start", now[0])
        now[0] += 1000.0
        assert beacons.observe()[2:4] == (2000.0, False)
        keeper.show(0, 1, "batch", now[0])
        beacons.observe()
        now[0] += 7.0
        assert beacons.observe()[2:4] == (7.0, True)
        keeper.new_workers()


def test_a_script_is_known_to_have_a_beacon_once_it_has_shown_one_in_whichever_round() -> None:
    keeper, beacons, now = watching(1)
    beacons.begin()
    assert not beacons.observe().has_beacon
    keeper.show(0, 0, "start", now[0])
    assert beacons.observe().has_beacon
    keeper.new_workers()
    beacons.begin()
    assert beacons.observe().has_beacon


def test_what_the_workers_of_the_last_round_showed_is_no_iteration_of_this_one() -> None:
    keeper, beacons, now = watching(1)
    beacons.begin()
    keeper.show(0, 105, "batch", now[0])
    assert beacons.observe().iteration == beacons.iteration(0) == 105
    beacons.begin()
    assert beacons.observe().iteration == beacons.iteration(0) == 0
    now[0] += 1.0
    keeper.new_workers()
    keeper.show(0, 100, "start", now[0])
    assert beacons.observe().iteration == beacons.iteration(0) == 100


def test_after_the_end_nobody_stands_still() -> None:
    keeper, beacons, now = watching(1)
    beacons.begin()
    for time in (1.0, 2.0):
        keeper.show(0, 1, "batch", time)
        beacons.observe()
    beacons.end()
    now[0] += 1000.0
    assert beacons.observe()[:5] == (0, "", 0.0, False, True)


V1 = (
    "4:memory:/docker/abc\n3:cpu:/\n0::/docker/abc\n",
    "memory{}/memory.oom_control",
    "oom_kill_disable 0\nunder_oom 0\n",
)
V2 = ("0::/docker/abc\n", "{}/memory.events", "low 0\nhigh 7\noom 3\n")


@pytest.mark.parametrize("inside", [True, False], ids=["the group's own path", "mounted as the root"])
@pytest.mark.parametrize(("groups", "file", "other"), [V1, V2], ids=["v1", "v2"])
def test_the_groups_own_count_of_kills_is_found_and_read(
    tmp_path: Path, groups: str, file: str, other: str, inside: bool
) -> None:
    (tmp_path / "cgroup").write_text(groups)
    counter = tmp_path / "fs" / file.format("/docker/abc" if inside else "").lstrip("/")
    counter.parent.mkdir(parents=True)
    counter.write_text(f"{other}oom_kill 2\n")
    assert own_counter_path(tmp_path / "cgroup", tmp_path / "fs") == counter
    kills = OomCounter(counter)
    assert not kills.rose_since_last_call()
    counter.write_text(f"{other}oom_kill 3\n")
    assert kills.rose_since_last_call()
    assert not kills.rose_since_last_call()


def test_where_no_group_can_be_read_nothing_is_ever_seen(tmp_path: Path) -> None:
    (tmp_path / "cgroup").write_text("0::/x\n")
    assert own_counter_path(tmp_path / "cgroup", tmp_path / "fs") is None
    assert own_counter_path(tmp_path / "not there", tmp_path) is None
    assert not OomCounter(None).rose_since_last_call()
    events_path = tmp_path / "memory.events"
    events_path.write_text("oom_kill 5\n")
    kills = OomCounter(events_path)
    events_path.unlink()
    assert not kills.rose_since_last_call()


def test_a_window_ends_after_its_seconds_and_begins_anew_with_another_round() -> None:
    now, boards = [0.0], {0: Board(1, 3, 4, 0, 1, iteration=1)}
    watch = PaceWatch(lambda: boards, lambda: now[0])
    watch.look()
    now[0], boards[0] = WINDOW_S / 2, Board(1, 3, 4, 0, 1, iteration=11, samples=25, waits=5)
    watch.look()
    assert watch.take() == ()
    now[0], boards[0] = WINDOW_S, Board(1, 3, 4, 0, 1, iteration=21, samples=50, waits=10, data_s=4.0)
    watch.look()
    (pace,) = watch.take()
    assert (pace.rank, pace.iterations, pace.waited) == (3, 20, 0.2)
    assert (pace.iteration_s, pace.data_s) == (WINDOW_S / 20, 0.2)
    assert watch.take() == (), "each window is told once"
    now[0], boards[0] = 2 * WINDOW_S, Board(2, 3, 4, 0, 2, iteration=9, samples=50)
    watch.look()
    assert watch.take() == ()


def test_a_pace_says_why_the_clocks_of_the_nodes_devices_are_lowered() -> None:
    now, boards = [0.0], {0: Board(1, 0, 2, 0, 1, iteration=1)}
    watch = PaceWatch(lambda: boards, lambda: now[0], lambda _rank: "too hot (driver)")
    watch.look()
    now[0], boards[0] = WINDOW_S, Board(1, 0, 2, 0, 1, iteration=20, samples=50)
    watch.look()
    assert [pace.lowered for pace in watch.take()] == ["too hot (driver)"]


@pytest.mark.parametrize(("remote", "resent_hz", "rtt_s"), [("10.0.0.2:1", 2.0, 0.3), ("127.0.0.1:1", 0.0, 0.0)])
def test_segments_sent_again_within_the_machine_tell_nothing_of_its_network(
    monkeypatch: pytest.MonkeyPatch, remote: str, resent_hz: float, rtt_s: float
) -> None:
    now, boards, sockets = [0.0], {0: Board(1, 0, 2, 0, 1, iteration=1)}, [TcpSocket(1, remote, 0.3, 0, 0, 5)]
    monkeypatch.setattr(pace_watch, "sockets_of", lambda pid, known: sockets)
    watch = PaceWatch(lambda: boards, lambda: now[0])
    watch.look()
    now[0], boards[0] = WINDOW_S, Board(1, 0, 2, 0, 1, iteration=20, samples=50)
    sockets[0] = sockets[0]._replace(resent=5 + int(2 * WINDOW_S))
    watch.look()
    (pace,) = watch.take()
    assert (pace.resent_hz, pace.rtt_s) == (resent_hz, rtt_s)


def test_a_window_in_which_a_rank_evaluates_says_nothing_of_its_pace() -> None:
    now, boards = [0.0], {0: Board(1, 0, 2, 0, 1, iteration=1)}
    watch = PaceWatch(lambda: boards, lambda: now[0])
    watch.look()
    for at in (1.0, WINDOW_S):
        now[0], boards[0] = at, Board(1, 0, 2, 0, 1, iteration=20, samples=50, phase="evaluation")
        watch.look()
    (pace,) = watch.take()
    assert pace.iteration_s == 0


def test_the_first_window_begins_with_the_first_iteration() -> None:
    now, boards = [0.0], {0: Board(1, 0, 2, 0, 1)}
    watch = PaceWatch(lambda: boards, lambda: now[0])
    begin_s = WINDOW_S - 1
    for at, iteration, samples in ((0.0, 0, 0), (begin_s, 1, 0), (WINDOW_S, 2, 5), (begin_s + WINDOW_S, 11, 50)):
        assert watch.take() == ()
        now[0], boards[0] = at, Board(1, 0, 2, 0, 1, iteration=iteration, samples=samples)
        watch.look()
    (pace,) = watch.take()
    assert (pace.iterations, pace.iteration_s) == (10, WINDOW_S / 10)


@pytest.mark.parametrize("phase", ["", "restore", "evaluation", "fetch", "torch.save"])
def test_before_the_first_progress_workers_that_use_nothing_are_blocked_unless_that_may_take_long(phase: str) -> None:
    idle = subprocess.Popen(["sleep", "999"])
    try:
        now, board = [100.0], Board(idle.pid, 0, 2, 0, 1, phase=phase, entered=1)
        beacons = ProgressMonitor(KeeperStub(1), 1, lambda: now[0], False, lambda _: board)  # type: ignore[arg-type]
        beacons.begin()
        for _ in range(5):
            now[0] += 60.0
            progress = beacons.observe()
        assert progress.awaits
        is_long = phase in LONG_PHASES and phase != "torch.save"  # It waits for others there: that may hang.
        assert progress.blocked_s == (0.0 if is_long else 240.0)
    finally:
        idle.kill()
        idle.wait()


def test_before_the_first_progress_a_worker_that_computes_is_not_blocked() -> None:
    busy = subprocess.Popen(["sh", "-c", "while :; do :; done"])
    try:
        clock, board = monotonic, Board(busy.pid, 0, 2, 0, 1, entered=1)
        beacons = ProgressMonitor(KeeperStub(1), 1, clock, False, lambda _: board)  # type: ignore[arg-type]
        beacons.begin()
        until, most = clock() + 5, 0.0
        while clock() < until:
            most = max(most, beacons.observe().blocked_s)
            threading.Event().wait(0.2)
        assert most < 4.0, "its CPU time was seen"
    finally:
        busy.kill()
        busy.wait()
