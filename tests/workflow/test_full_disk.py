"""A full disk ends a launcher in one line; what was told before stays, and the run is taken up when there is room."""

import os
import resource
import subprocess
import sys
import tempfile
from collections.abc import Callable
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from everstep.runtime.workflow.engine.events import CorruptLogError, Event, EventLog, NodeSet, read_events
from tests.harness import ROOT

EVENTS = st.lists(st.builds(NodeSet, time=st.just(1.0), node=st.just("a"), message=st.text(max_size=80)), max_size=8)


class Disk:
    """`os.write` on a disk that has so much room, and writes what fits of a line."""

    def __init__(self, room: int, real: Callable[..., int]) -> None:
        self.room, self._real, self.refused = room, real, 0

    def write(self, file: int, data: memoryview) -> int:
        if not self.room:
            self.refused += 1
            raise OSError(28, "No space left on device")
        bytes_written = self._real(file, data[: self.room])
        self.room -= bytes_written
        return bytes_written


@given(EVENTS, EVENTS, st.integers(0, 400), st.booleans())
def test_what_was_told_before_and_after_a_full_disk_is_read_again(
    before: list[Event], after: list[Event], room: int, reopened: bool
) -> None:
    with tempfile.TemporaryDirectory() as folder, pytest.MonkeyPatch.context() as patch:
        path = Path(folder, "events.jsonl")
        log = EventLog(path)
        disk = Disk(room, os.write)
        events: list[Event] = []
        patch.setattr(os, "write", disk.write)
        for event in before:
            try:
                log.append(event)
                events.append(event)
            except OSError:
                assert disk.refused
        patch.undo()
        assert list(read_events(path)) == events
        if reopened:
            log.close()
            log = EventLog(path)
        for event in after:
            log.append(event)
        log.close()
        assert list(read_events(path)) == events + after


def test_a_line_in_the_middle_that_is_no_event_is_named(tmp_path: Path) -> None:
    path = tmp_path / "events.jsonl"
    log = EventLog(path)
    log.append(NodeSet(1.0, "a"))
    log.close()
    path.write_bytes(path.read_bytes() * 2 + b"\0\0\n" + path.read_bytes())
    with pytest.raises(CorruptLogError, match=r"events\.jsonl line 3 is not an event"):
        list(read_events(path))


MANIFEST = """
apiVersion: argoproj.io/v1alpha1
kind: Workflow
metadata: {generateName: t-}
spec:
  entrypoint: main
  onExit: bye
  templates:
  - name: main
    steps:
    - - {name: a, template: gen, arguments: {parameters: [{name: num, value: "{{item}}"}]}, withSequence: {count: "20"}}
  - name: gen
    inputs: {parameters: [{name: num}]}
    script: {image: a, command: [sh], source: "echo {{inputs.parameters.num}} >> RAN; echo SAID"}
  - name: bye
    container: {image: a, command: [sh, -c, "echo bye >> RAN"]}
"""


def _everstep(*words: str, room: int = 0) -> subprocess.CompletedProcess[str]:
    """`everstep workflow`, in which no file may grow beyond `room` bytes (0: as it likes)."""

    def limit() -> None:
        if room:
            resource.setrlimit(resource.RLIMIT_FSIZE, (room, room))

    command = [sys.executable, "-m", "everstep", "workflow", *words]
    return subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=False, preexec_fn=limit, timeout=100)


def _make_workflow(folder: Path, log_bytes: int = 1) -> tuple[Path, list[str]]:
    """Where its steps say that they ran, and the words that run it; each prints so many bytes."""
    ran, file = folder / "ran", folder / "w.yaml"
    print_it = f"head -c {log_bytes} /dev/zero | tr '\\\\0' x || true"  # Its log may be full.
    file.write_text(MANIFEST.replace("RAN", str(ran)).replace("echo SAID", print_it))
    return ran, ["run", str(file), "--name", "w", "--runs", str(folder / "runs")]


def _each_ran_once(ran: Path) -> None:
    assert sorted(ran.read_text().split()) == sorted([*map(str, range(20)), "bye"])


@pytest.mark.parametrize(("room", "full"), [(9000, "workflow.json"), (600, "manifest.json")])
def test_a_run_that_cannot_write_ends_in_one_line_and_is_taken_up_when_it_can(
    tmp_path: Path, room: int, full: str
) -> None:
    ran, words = _make_workflow(tmp_path)
    first = _everstep(*words, room=room)
    assert first.returncode == 75, first.stderr
    last = first.stderr.splitlines()[-1]
    assert "File too large; free some space, then resume the run: everstep workflow resume w" in last
    assert "Traceback" not in first.stderr
    begun = full != "manifest.json"
    assert (tmp_path / "runs/w/manifest.json").exists() == begun
    second = _everstep(*(["resume", "w", *words[-2:]] if begun else words))
    assert second.returncode == 0, second.stderr
    _each_ran_once(ran)


TMPFS = """
mount -t tmpfs -o size=160k none {runs} || exit 99
"$@"; echo "first $?"
mount -o remount,size=20m none {runs}
{python} -m everstep workflow resume w --runs {runs}; echo "second $?"
"""


def test_a_run_on_a_full_file_system_is_taken_up_when_there_is_room(tmp_path: Path) -> None:
    ran, words = _make_workflow(tmp_path, log_bytes=10_000)
    runs = tmp_path / "runs"
    runs.mkdir()
    script = TMPFS.format(runs=runs, python=sys.executable)
    command = ["unshare", "-rm", "sh", "-c", script, "sh", sys.executable, "-m", "everstep", "workflow", *words]
    run = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=False, timeout=100)
    if run.returncode == 99 or "unshare" in run.stderr:
        pytest.skip(f"no mounts of one's own here: {run.stderr.strip()[-200:]}")
    assert "Traceback" not in run.stderr
    assert "No space left on device; free some space" in run.stderr, "the fault must have fired"
    assert run.stdout.split("\n")[0] == "first 75"
    assert "second 0" in run.stdout, run.stderr[-500:]
    _each_ran_once(ran)
