"""The cluster's own processes, by name: started in a host's network namespace, found again by a later command."""

import json
import os
import signal
import subprocess
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path

import psutil

from tests.cluster.layout import HOME, host_name
from tests.harness import wait_until

PIDS, LOGS = HOME / "processes", HOME / "logs"


class ClusterError(RuntimeError):
    """The cluster is not as it should be. One line: what, where to look."""


def output_of(*command: str | Path, text: str | None = None) -> str:
    """What the command printed. Raises ClusterError with its last words when it fails."""
    words = [str(word) for word in command]
    completed = subprocess.run(words, input=text, capture_output=True, text=True, check=False)
    if completed.returncode:
        raise ClusterError(f"{' '.join(words)[:200]}: {completed.stderr.strip()[-500:] or completed.returncode}")
    return completed.stdout


def works(*command: str | Path) -> bool:
    """Whether the command succeeds."""
    try:
        output_of(*command)
    except ClusterError:
        return False
    return True


def start(name: str, host: int, command: Sequence[str | Path], environment: Mapping[str, str] = {}) -> None:
    """Run it as that name on the host, unless it runs already."""
    if running(name):
        return
    for folder in (PIDS, LOGS):
        folder.mkdir(parents=True, exist_ok=True)
    # Not `ip netns exec`: it mounts /sys anew, without the control groups of version 1.
    inside = ["nsenter", f"--net=/run/netns/{host_name(host)}", *map(str, command)]
    with (LOGS / f"{name}.log").open("ab") as log:
        child = subprocess.Popen(
            inside, env={**os.environ, **environment}, stdin=subprocess.DEVNULL, stdout=log, stderr=log,
            start_new_session=True,
        )  # fmt: skip
    born = psutil.Process(child.pid).create_time()
    (PIDS / name).write_text(json.dumps({"pid": child.pid, "born": born}))


def running(name: str) -> psutil.Process | None:
    """The process of that name, if it lives."""
    try:
        record = json.loads((PIDS / name).read_text())
        process = psutil.Process(record["pid"])
        if process.create_time() == record["born"] and process.status() != psutil.STATUS_ZOMBIE:
            return process
    except (OSError, psutil.NoSuchProcess):
        pass
    return None


def names() -> list[str]:
    """Of all that were started and not stopped."""
    return sorted(path.name for path in PIDS.glob("*"))


def stop(name: str, number: signal.Signals = signal.SIGTERM) -> None:
    """End it, by force when it takes too long."""
    if process := running(name):
        process.send_signal(number)
        try:
            process.wait(20)
        except psutil.TimeoutExpired:
            process.kill()
            process.wait(20)
    (PIDS / name).unlink(missing_ok=True)


def last_words(name: str) -> str:
    """The end of its log."""
    try:
        return " ".join((LOGS / f"{name}.log").read_text(errors="replace").splitlines()[-1:])
    except FileNotFoundError:
        return "no log"


def wait(predicate: Callable[[], object], what: str, seconds: float = 120) -> None:
    """Until it is so. Raises ClusterError at the deadline, and as soon as one of the processes is dead."""

    def so_or_dead() -> bool:
        if dead := [name for name in names() if not running(name)]:
            raise ClusterError(f"{dead[0]} died: {last_words(dead[0])}; see {LOGS}")
        return bool(predicate())

    try:
        wait_until(so_or_dead, what, seconds, pause_s=0.1)
    except TimeoutError as error:
        raise ClusterError(f"{error}; see {LOGS}") from None
