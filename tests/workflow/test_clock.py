"""Every duration of a run goes by the monotonic clock; a launcher that takes a run up goes by what was told."""

import ast
import asyncio
import time
from pathlib import Path

import pytest
import yaml

import everstep.runtime.workflow
from everstep.runtime.workflow import RunOptions, execute
from everstep.runtime.workflow.engine.events import PodEnded, PodStarted, RunCreated, read_events
from everstep.runtime.workflow.engine.nodes import Phase
from everstep.runtime.workflow.local_pods import clock
from tests.harness import wait_until
from tests.workflow.running import manifest_text

HOUR_S = 3600.0
NOW, BOOT = 1_000_000.0, 500.0
TICKS = clock.TICKS_A_SECOND


class Machine:
    """Clocks by hand."""

    def __init__(self) -> None:
        self.wall, self.monotonic, self.boot = NOW, 7.0, BOOT

    def pass_(self, seconds: float) -> None:
        """Time goes by on all of them."""
        self.wall, self.monotonic, self.boot = self.wall + seconds, self.monotonic + seconds, self.boot + seconds

    def resumed(self, earlier_events: list[RunCreated | PodStarted | PodEnded], alive: dict[int, int]) -> clock.Clock:
        """The clock of a launcher that is told this, while these pods run: start time by pid."""
        return clock.resume_clock(
            earlier_events, lambda pid: alive.get(pid, 0), lambda: self.wall, lambda: self.boot, lambda: self.monotonic
        )


@pytest.mark.parametrize("jump_s", [HOUR_S, -HOUR_S])
def test_a_machines_clock_that_is_set_changes_no_duration(jump_s: float) -> None:
    machine = Machine()
    own = machine.resumed([], {})
    machine.pass_(6.0)
    machine.wall += jump_s
    assert own.now() == NOW + 6.0
    assert own.file_time(machine.wall, NOW) == NOW + 6.0


def test_a_file_from_before_the_clock_was_set_was_written_between_the_start_and_now() -> None:
    machine = Machine()
    own = machine.resumed([], {})
    machine.pass_(10.0)
    assert own.file_time(NOW + 4.0, NOW + 1.0) == NOW + 4.0
    machine.wall += HOUR_S
    assert own.file_time(NOW + 4.0, NOW + 1.0) == NOW + 1.0
    machine.wall -= 2 * HOUR_S
    assert own.file_time(NOW + 4.0, NOW + 1.0) == NOW + 10.0


@pytest.mark.parametrize("jump_s", [HOUR_S, -HOUR_S, 0.0])
def test_a_launcher_that_adopts_a_pod_goes_by_the_pods_own_age(jump_s: float) -> None:
    machine = Machine()
    earlier_events = [RunCreated(NOW, "w", "u"), PodStarted(NOW + 1.0, "w.a", 77, int(BOOT * TICKS))]
    machine.pass_(20.0)
    machine.wall += jump_s
    assert machine.resumed(earlier_events, {77: int(BOOT * TICKS)}).now() == NOW + 21.0


def test_a_launcher_whose_pods_are_gone_never_goes_back_behind_what_was_told() -> None:
    machine = Machine()
    earlier_events = [RunCreated(NOW, "w", "u"), PodStarted(NOW + 50.0, "w.a", 77, 1), PodEnded(NOW + 60.0, "w.a", 0)]
    machine.pass_(5.0)
    assert machine.resumed(earlier_events, {77: 2}).now() == NOW + 60.0
    machine.pass_(100.0)
    assert machine.resumed(earlier_events, {}).now() == NOW + 105.0


LONG = manifest_text("""
  - name: main
    steps: [[{name: a, template: long}, {name: b, template: short}]]
  - name: long
    activeDeadlineSeconds: 600
    container: {image: a, command: [sh, -c, "until test -e b-has-ended; do sleep 0.05; done"]}
  - name: short
    container: {image: a, command: [sh, -c, "until test -e the-clock-was-set; do sleep 0.05; done"]}
""")


def test_a_step_outlives_a_clock_that_is_set_forward_by_an_hour(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    real, folder = time.time, tmp_path / "runs/w"

    def has_event(kind: type[PodStarted] | type[PodEnded], node: str) -> bool:
        return any(isinstance(event, kind) and event.node == node for event in read_events(folder / "events.jsonl"))

    async def set_forward() -> Phase:
        run = asyncio.create_task(execute(yaml.safe_load(LONG), RunOptions("w", tmp_path / "runs", work_dir=tmp_path)))
        await asyncio.to_thread(wait_until, lambda: has_event(PodStarted, "w[0].a"), "the start")
        monkeypatch.setattr(time, "time", lambda: real() + HOUR_S)
        (tmp_path / "the-clock-was-set").touch()
        await asyncio.to_thread(wait_until, lambda: has_event(PodEnded, "w[0].b"), "the end of the other step")
        (tmp_path / "b-has-ended").touch()
        return (await run).phase

    assert asyncio.run(set_forward()) is Phase.SUCCEEDED
    times = [event.time for event in read_events(folder / "events.jsonl")]
    assert max(times) - min(times) < HOUR_S / 2


def test_only_the_clock_looks_at_the_machines() -> None:
    for path in Path(str(everstep.runtime.workflow.__file__)).parent.rglob("*.py"):
        for node in ast.walk(ast.parse(path.read_text())):
            if isinstance(node, ast.Attribute) and isinstance(node.value, ast.Name) and node.value.id == "time":
                assert node.attr != "time" or path.name == "clock.py", path
