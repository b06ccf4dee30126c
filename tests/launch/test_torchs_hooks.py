"""torchrun's flags that bring in torch's or the user's own code: log layouts, event handlers, CPU binding."""

import json
import os
import re
from pathlib import Path
from typing import Any

import pytest

from everstep.runtime.launch.affinity import cpus_of
from everstep.runtime.launch.events import logger_of
from tests.launch.launchers import LaunchOutcome, Pair

torch = pytest.importorskip("torch")

LAYOUT = """
import os
from torch.distributed.elastic.multiprocessing import LogsDest, LogsSpecs

class Flat(LogsSpecs):
    @property
    def root_log_dir(self):
        return self._root_log_dir

    def reify(self, envs):
        os.makedirs(self._root_log_dir + "/run", exist_ok=True)
        def path(kind, rank):
            told = [envs[rank][name] for name in ("RANK", "WORLD_SIZE", "TORCHELASTIC_RESTART_COUNT")]
            return f"{self._root_log_dir}/run/{kind}-{told[0]}-of-{told[1]}-{told[2]}"
        for rank in envs:
            envs[rank]["MINE"] = f"{self._tee} {self._redirects} {sorted(self._local_ranks_filter)}"
            envs[rank]["TORCHELASTIC_ERROR_FILE"] = path("error", rank)
        return LogsDest(
            stdouts={0: path("out", 0), 1: path("out", 1), 2: ""},
            stderrs={0: "", 1: path("err", 1), 2: os.devnull},
            tee_stdouts={0: path("out", 0)},
            error_files={rank: path("error", rank) for rank in envs},
            filtered_stdout=self._root_log_dir + "/run/filtered",
        )
"""
SCRIPT = """
import json, os, sys, time
rank, attempt = os.environ["RANK"], os.environ["TORCHELASTIC_RESTART_COUNT"]
sys.stdout.write(f"apple of {rank}\\nsees {os.environ['MINE']}\\n")
sys.stderr.write(f"peel of {rank}\\n")
with open(f"mine-{rank}-{attempt}", "w") as file:
    file.write(str(os.getpid()))
os.rename(f"mine-{rank}-{attempt}", f"wrote-{rank}-{attempt}")
def has_ended(other):
    try:
        with open(f"wrote-{other}-{attempt}") as file:
            pid = file.read()
    except FileNotFoundError:
        return False
    try:
        with open(f"/proc/{pid}/stat") as file:
            return ") Z " in file.read()
    except OSError:
        return True
if rank == "1" and attempt in FAILING:
    while not (has_ended(0) and has_ended(2)):  # Whoever still ends when this one fails may have failed, too.
        time.sleep(0.01)
    with open(os.environ["TORCHELASTIC_ERROR_FILE"], "w") as file:
        json.dump({"message": {"message": "boom", "extraInfo": {"py_callstack": "boom", "timestamp": "7"}}}, file)
    sys.exit(1)
"""


def peels(outcome: LaunchOutcome) -> list[str]:
    """What workers wrote to stderr."""
    return sorted(line for line in outcome.err.splitlines() if "peel" in line)


def test_a_users_log_layout_says_where_streams_and_errors_go(pair: Pair) -> None:
    pair.files = {
        "flat.py": LAYOUT,
        "flat-1.dist-info/METADATA": "Metadata-Version: 2.1\nName: flat\nVersion: 1\n",
        "flat-1.dist-info/entry_points.txt": "[torchrun.logs_specs]\nflat = flat:Flat\n",
    }
    flags = ["--standalone", "--nproc-per-node=3", "--max-restarts=1", "--logs-specs", "flat", "--log-dir", "logs"]
    flags += ["--tee=0:1", "--redirects=2", "--local-ranks-filter=0,2", "--duplicate-stdout-filters=apple"]
    theirs, mine = pair.run("FAILING = '0'" + SCRIPT, *flags, "train.py", OMP_NUM_THREADS="1")
    assert (theirs.code, mine.code) == (0, 0), mine.err
    assert mine.lines() == theirs.lines()
    assert peels(mine) == peels(theirs)
    logs = [{name: content(name, text) for name, text in outcome.logs().items()} for outcome in (theirs, mine)]
    assert logs[0] == logs[1]
    assert {name for name in logs[0] if "error" in name} == {"error-1-of-3-0"}


def content(name: str, text: str) -> str:
    """Of an error file its message, without times and paths."""
    return json.loads(text)["message"]["message"] if name.startswith("error") else text


def test_torchs_own_layout_can_be_named(pair: Pair) -> None:
    script = "import sys\nprint('apple', flush=True)\nsys.stderr.write('a peel\\n')\n"
    flags = ("--standalone", "--log-dir=logs", "--logs-specs=default", "--tee=1", "--redirects=2", "train.py")
    theirs, mine = pair.run(script, *flags)
    assert (theirs.code, mine.code) == (0, 0), mine.err
    assert mine.lines() == theirs.lines() == ["[default0]:apple"]
    assert mine.logs() == theirs.logs() == {"attempt_0/0/stdout.log": "apple\n", "attempt_0/0/stderr.log": "a peel\n"}


def events(outcome: LaunchOutcome) -> list[dict[str, Any]]:
    """The launch's events, without what chance and clocks say, and with process numbers only as there or not."""
    events = []
    for line in outcome.err.splitlines():
        if line.startswith('{"name": "torchelastic.'):
            event = json.loads(line)
            metadata = event["metadata"]
            metadata["metadata"] = json.loads(metadata["metadata"])
            for name in ("run_id", "total_run_time"):
                assert metadata.pop(name) is not None
            raw = json.loads(metadata["raw_error"] or "null")
            metadata["raw_error"] = raw and raw["message"]["message"]
            metadata["duration_ms"] = metadata["duration_ms"] is not None
            metadata["worker_id"] = re.sub(r"\d+", "PID", str(metadata["worker_id"]))
            if (pids := metadata["metadata"].get("worker_pid")) is not None:
                metadata["metadata"]["worker_pid"] = [pid is not None for pid in pids]
            events.append(event)
    return events


def test_events_on_the_console_are_those_of_torchrun(pair: Pair) -> None:
    flags = ["--standalone", "--nproc-per-node=3", "--max-restarts=1", "--role=trainer", "--event-log-handler=console"]
    theirs, mine = pair.run("FAILING = '01'" + SCRIPT, *flags, "train.py", OMP_NUM_THREADS="1", MINE="x")
    assert (theirs.code, mine.code) == (1, 1), mine.err
    assert events(mine) == events(theirs)
    states = [event["metadata"]["state"] for event in events(mine)]
    begin = ["RENDEZVOUS", "ASSIGN_WORKER_RANKS", "START", "START", "START"]
    assert states == [*begin, *begin, "TERMINATED", "FAILED", "TERMINATED", "SUCCEEDED"]


def test_an_event_handler_is_torchs_or_unknown() -> None:
    assert logger_of("null") is None
    known_logger = logger_of("dynamic_rendezvous")
    assert known_logger is not None
    assert [type(handler).__name__ for handler in known_logger.handlers] == ["NullHandler"]
    with pytest.raises(ValueError, match="--event-log-handler mine: torch has no handler of this name"):
        logger_of("mine")


@pytest.mark.skipif(torch.accelerator.is_available(), reason="this machine has what is missing here")
def test_binding_without_a_device_fails_in_torchs_words(pair: Pair) -> None:
    theirs, mine = pair.run("print('runs')", "--standalone", "--numa-binding=node", "train.py")
    words = "No accelerator available for NUMA binding"
    assert words in theirs.err
    assert theirs.code != 0
    assert mine.err == f"everstep launch: --numa-binding node: {words}; leave the flag out to bind no worker\n"
    assert (mine.code, theirs.out + mine.out) == (2, "")


def test_cpus_are_those_that_torch_finds_near_each_device(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    if not Path("/sys/devices/system/node/node0/cpulist").exists():
        pytest.skip("this machine does not say where its CPUs are")
    (tmp_path / "sitecustomize.py").write_text(
        "import shutil\n"
        "shutil.which = lambda name: name\n"
        "from torch.numa import binding\n"
        "binding._get_numa_node_index_for_device_index = lambda *, device_index: 0\n"
        "binding._get_device_count = lambda: 1\n"
    )
    monkeypatch.setenv("PYTHONPATH", f"{tmp_path}:{os.environ.get('PYTHONPATH', '')}")
    cpu_list = Path("/sys/devices/system/node/node0/cpulist").read_text().strip()
    ranges = [[int(end) for end in part.split("-")] for part in cpu_list.split(",")]
    near = {cpu for ends in ranges for cpu in range(ends[0], ends[-1] + 1)} & os.sched_getaffinity(0)
    assert cpus_of("node", 1) == (tuple(sorted(near)),)
