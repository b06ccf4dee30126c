"""The same small script under torch's own launcher and under `everstep launch`: what it sees, writes and ends with."""

import json
import os
import random
import re
import sys
from pathlib import Path
from typing import Any

import pytest

from everstep.runtime.agent.compiler import WHOLE
from everstep.runtime.agent.ports import free_port
from tests.launch.launchers import LaunchOutcome, Pair

ENVIRONMENT = """
import json, os, sys
sys.stdout.write(json.dumps({
    "environment": {k: v for k, v in os.environ.items() if k not in json.loads(os.environ["BEFORE"])},
    "argv": sys.argv, "path": sys.path[0], "file": __file__, "name": __name__, "cwd": os.getcwd(),
    "stdin": os.readlink("/proc/self/fd/0"), "module": __spec__ is not None,
}) + "\\n")
"""
OTHERS = {
    "MASTER_ADDR",
    "MASTER_PORT",
    "TORCHELASTIC_RUN_ID",
    "TORCHELASTIC_ERROR_FILE",
    "TORCHELASTIC_USE_AGENT_STORE",
    "TORCH_NCCL_ASYNC_ERROR_HANDLING",
}
"""Values that cannot be the same: names made by chance, and who hosts torch's store."""
MORE = {"TORCH_DIST_USE_NCCL2", "TORCH_NCCL_WAIT_TIMEOUT_DUMP_MILSEC", "TORCH_NCCL_DUMP_ON_TIMEOUT"}
"""Set on purpose: see their place in the agent."""
NUMBERED = {"CUDA_DEVICE_ORDER"}
"""Set where the agent numbers the devices: see its place in `platform.devices`."""
STREAMS = """
import os, sys
rank = os.environ["RANK"]
for word in ("apple", "pear"):
    sys.stdout.write(f"{word} of {rank}\\n")
    sys.stderr.write(f"{word} peel of {rank}\\n")
"""
RECORDS = """
import os
from torch.distributed.elastic.multiprocessing.errors import record
@record
def main():
    if os.environ["RANK"] == "1":
        raise ValueError("boom")
main()
"""


def views_by_rank(outcome: LaunchOutcome) -> dict[str, dict[str, Any]]:
    """What each rank saw, by rank; the folder in which it ran is cut out."""
    text = outcome.out.replace(str(outcome.folder), "FOLDER")
    views = [json.loads(line) for line in text.splitlines()]
    return {iteration_facts["environment"]["RANK"]: iteration_facts for iteration_facts in views}


@pytest.mark.parametrize(
    "flags",
    [
        ["--standalone", "--nproc-per-node", "2", "train.py", "--lr", "0.1", "${local_rank}"],
        ["train.py"],
        ["--nproc_per_node=cpu", "--rdzv-backend=c10d", "--rdzv-endpoint=localhost:0", "--rdzv-id=j",
         "--local-addr=127.0.0.1", "--role", "trainer", "--max-restarts=3", "train.py"],
        ["--master-addr", "127.0.0.1", "--master-port", "{port}", "--node-rank=0",
         "--signals-to-handle=SIGTERM,SIGUSR1", "-m", "train", "--nnodes", "7"],
        ["--standalone", "--virtual-local-rank", "--nproc-per-node=2", "--run-path", "{folder}/train.py", "x"],
    ],
    ids=["standalone", "no flag", "c10d", "static", "virtual ranks, run-path"],
)  # fmt: skip
def test_workers_see_what_they_see_under_torchrun(pair: Pair, flags: list[str]) -> None:
    before = json.dumps([*os.environ, "PYTHONPATH", "TMPDIR", "BEFORE"])
    port = str(free_port(random.Random()))
    flags = [flag.replace("{port}", port) for flag in flags]
    theirs, mine = pair.run(ENVIRONMENT, *flags, BEFORE=before, OMP_NUM_THREADS="3" if "-m" in flags else "")
    assert (theirs.code, mine.code) == (0, 0), mine.err
    torch, ours = views_by_rank(theirs), views_by_rank(mine)
    assert sorted(torch) == sorted(ours)
    for rank, iteration_facts in torch.items():
        own = ours[rank]
        environment = {
            name: value
            for name, value in own.pop("environment").items()
            if not name.startswith("EVERSTEP_") and (name, value) != ("CXX", str(WHOLE))
        }
        expected = iteration_facts.pop("environment")
        more = MORE | NUMBERED if "--virtual-local-rank" in flags else MORE
        assert set(environment) == set(expected) | more
        assert {name: environment[name] for name in set(expected) - OTHERS} == {
            name: expected[name] for name in set(expected) - OTHERS
        }
        aborts = "TORCH_NCCL_ASYNC_ERROR_HANDLING"
        assert (environment[aborts], expected[aborts]) == ("3", "1"), "different on purpose: see its place in the agent"
        if "--master-port" in flags:
            assert (environment["MASTER_ADDR"], environment["MASTER_PORT"]) == ("127.0.0.1", port)
            assert environment["TORCHELASTIC_RUN_ID"] == expected["TORCHELASTIC_RUN_ID"]
        if "--rdzv-id=j" in flags:
            assert environment["MASTER_ADDR"] == expected["MASTER_ADDR"] == "127.0.0.1"
            assert environment["TORCHELASTIC_RUN_ID"] == "j"
        layout = re.compile(r".*/attempt_0/\d/error\.json")
        assert layout.fullmatch(environment["TORCHELASTIC_ERROR_FILE"])
        assert layout.fullmatch(expected["TORCHELASTIC_ERROR_FILE"])
        assert own == iteration_facts


def test_a_terminal_or_file_is_handed_on_to_the_workers_as_it_is(pair: Pair) -> None:
    theirs, mine = pair.run(
        "import os\nprint(os.path.basename(os.readlink('/proc/self/fd/1')), os.readlink('/proc/self/fd/2')[-8:])\n",
        "--standalone",
        "train.py",
    )
    assert mine.lines() == theirs.lines() == ["node.out node.err"]


@pytest.mark.parametrize(
    "flags",
    [
        ["--redirects", "3"],
        ["-r", "0:1,1:2"],
        ["--tee", "3"],
        ["--tee", "0:3", "--redirects", "1:3"],
        ["-t", "3", "--local-ranks-filter", "1"],
        ["-r", "1", "--local-ranks-filter", "0"],
        ["--tee", "3", "--role", "trainer", "--log-line-prefix-template", "<${role_name} ${rank}/${local_rank}> "],
        ["--tee", "3", "--duplicate-stdout-filters", "apple", "--duplicate-stderr-filters", "pear,nothing"],
    ],
    ids=" ".join,
)
def test_streams_go_where_torchrun_sends_them(pair: Pair, flags: list[str]) -> None:
    theirs, mine = pair.run(
        STREAMS, "--standalone", "--nproc-per-node=2", "--log-dir", "logs", *flags, "train.py", OMP_NUM_THREADS="1"
    )
    assert (theirs.code, mine.code) == (0, 0)
    assert mine.lines() == theirs.lines()
    assert worker_stderr(mine) == worker_stderr(theirs)
    assert {name: sorted(text.splitlines()) for name, text in mine.logs().items()} == {
        name: sorted(text.splitlines()) for name, text in theirs.logs().items()
    }


def worker_stderr(outcome: LaunchOutcome) -> list[str]:
    """What workers wrote to stderr, without what the launchers themselves say."""
    return sorted(line for line in outcome.err.splitlines() if "peel" in line)


def test_with_dev_null_as_log_folder_there_are_no_files_and_no_error_file(pair: Pair) -> None:
    script = STREAMS + "print(repr(os.environ['TORCHELASTIC_ERROR_FILE']))\n"
    flags = ("--standalone", "--log-dir", "/dev/null", "--tee", "3", "--local-ranks-filter", "7", "train.py")
    theirs, mine = pair.run(script, *flags)
    assert mine.lines() == theirs.lines()
    assert worker_stderr(mine) == worker_stderr(theirs)


@pytest.mark.parametrize(
    ("script", "code"),
    [
        ("import sys; sys.exit(0)", 0),
        ("import sys; sys.exit(3)", 1),
        ("raise ValueError('boom')", 1),
        ("import os, signal; os.kill(os.getpid(), signal.SIGKILL)", 1),
        ("import os; os.abort()", 1),
        ("def f(:", 1),
    ],
    ids=["exit 0", "exit 3", "an exception", "a signal", "an abort", "a syntax error"],
)
def test_the_launcher_ends_with_torchruns_exit_code(pair: Pair, script: str, code: int) -> None:
    theirs, mine = pair.run(script, "--standalone", "train.py")
    assert (theirs.code, mine.code) == (code, code)


@pytest.mark.parametrize("recorded", [True, False], ids=["recorded", "not recorded"])
def test_error_files_are_written_and_handed_on_as_by_torchrun(pair: Pair, recorded: bool) -> None:
    script = RECORDS if recorded else RECORDS.replace("@record", "")
    more = {"TORCHELASTIC_ERROR_FILE": "{folder}/mine.json"}
    theirs, mine = pair.run(script, "--standalone", "--nproc-per-node=2", "--log-dir=logs", "train.py", **more)
    assert (theirs.code, mine.code) == (1, 1)
    assert set(mine.logs()) == set(theirs.logs())
    assert error(mine.folder / "mine.json") == error(theirs.folder / "mine.json")
    if recorded:
        assert error(mine.folder / "mine.json")["message"]["errorCode"] == 1
        assert "ValueError: boom" in mine.err
    else:
        assert "ValueError: boom" in mine.err, "the traceback is told although nothing recorded it"


def error(path: Path) -> Any:
    """An error file's content without times and paths; None where there is none."""
    if not path.exists():
        return None
    error_file = json.loads(path.read_text().replace(str(path.parent), "FOLDER"))
    error_file["message"]["extraInfo"].pop("timestamp")
    return error_file


@pytest.mark.parametrize("script", ["raise ValueError('the same')", "import os, signal; os.kill(os.getpid(), 9)"])
def test_max_restarts_gives_as_many_attempts_as_torchrun_gives(pair: Pair, script: str) -> None:
    counting = "import os; print('attempt', os.environ['TORCHELASTIC_RESTART_COUNT'], flush=True)\n" + script
    theirs, mine = pair.run(counting, "--standalone", "--max-restarts=2", "--log-dir=logs", "--tee=1", "train.py")
    assert mine.lines() == theirs.lines() == [f"[default0]:attempt {number}" for number in range(3)]
    assert set(mine.logs()) == set(theirs.logs()) == {f"attempt_{number}/0/stdout.log" for number in range(3)}
    assert (theirs.code, mine.code) == (1, 1)


def test_any_program_can_be_run_without_python(pair: Pair) -> None:
    theirs, mine = pair.run("", "--standalone", "--no-python", "sh", "-c", 'echo "$RANK" "$1"', "sh", "a b")
    assert mine.lines() == theirs.lines() == ["0 a b"]
    assert (theirs.code, mine.code) == (0, 0)


def test_another_python_can_be_named_in_the_environment(pair: Pair) -> None:
    other = pair.folder / "other"
    other.write_text(f'#!/bin/sh\necho "$1"; exec {sys.executable} "$@"\n')
    other.chmod(0o755)
    theirs, mine = pair.run("print('runs')", "--standalone", "train.py", PYTHON_EXEC=str(other))
    assert mine.lines() == theirs.lines() == ["-u", "runs"]
    assert (theirs.code, mine.code) == (0, 0)
