"""`python -m everstep.prepare_once`: what a node's workers need is made by one of them."""

import json
import os
import signal
import subprocess
import sys
from pathlib import Path

import pytest

from everstep.runtime.protocol.worker_link import AGENT_VARIABLE
from tests.harness import ROOT

WRITE = """\
echo once >> count
HERE=$PWD/made; mkdir -p made; cd made
cat > script.py << END
import json, os, sys
from pathlib import Path
Path(os.environ["MARK"]).touch()
while len(list(Path(os.environ["MARK"]).parent.iterdir())) < int(os.environ["ALL"]):
    pass
END
for word in $(seq 300); do echo "print(end='')" >> script.py; done
echo 'print(json.dumps([os.getcwd(), os.environ["HERE"], os.environ["RANK"], sys.argv[1:]]))' >> script.py
"""
"""A file that is written in many parts."""
RUN = 'exec "$PYTHON" script.py "$@"'


class Workers:
    """Of one node, or of several in a run's folder, in one folder for their files."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.marks = folder / "marks"
        self.marks.mkdir()

    def start(self, rank: int, size: int, text: str = WRITE, run: str = RUN, **more: str) -> subprocess.Popen[str]:
        """The worker of that rank of `size`; each waits for the others."""
        variables = {
            **os.environ, "PYTHONPATH": str(ROOT), "PYTHON": sys.executable, AGENT_VARIABLE: str(self.folder / "link"),
            "RANK": str(rank), "GROUP_RANK": "7", "MARK": str(self.marks / str(rank)), "ALL": str(size), **more,
        }  # fmt: skip
        variables = {name: value for name, value in variables.items() if value}
        command = [sys.executable, "-m", "everstep.prepare_once", text, "bash", "-c", run, "bash", "a b"]
        return subprocess.Popen(command, cwd=self.folder, env=variables, stdout=subprocess.PIPE, text=True)

    def preparations(self) -> int:
        """How often the text has been run."""
        return len((self.folder / "count").read_text().splitlines())


@pytest.fixture
def workers(tmp_path: Path) -> Workers:
    return Workers(tmp_path)


def ends(started: list[subprocess.Popen[str]]) -> list[object]:
    """What each has printed; all have ended well."""
    outputs = [process.communicate(timeout=60)[0] for process in started]
    assert [process.returncode for process in started] == [0] * len(started)
    return list(map(json.loads, outputs))


def test_one_worker_prepares_and_all_run_with_what_it_leaves(workers: Workers) -> None:
    made = str(workers.folder / "made")
    told = ends([workers.start(rank, 4) for rank in range(4)])
    assert told == [[made, made, str(rank), ["a b"]] for rank in range(4)]
    assert workers.preparations() == 1


def test_nodes_of_a_run_on_one_machine_are_prepared_together(workers: Workers) -> None:
    run = str(workers.folder / "run")
    ends([
        workers.start(rank, 4, EVERSTEP_RUN_DIR=run, EVERSTEP_AGENT=str(workers.folder / f"{rank // 2}" / "link"))
        for rank in range(4)
    ])  # fmt: skip
    assert workers.preparations() == 1


def test_workers_that_start_again_are_prepared_again(workers: Workers) -> None:
    for _ in range(2):
        ends([workers.start(rank, 2) for rank in range(2)])
    assert workers.preparations() == 2


def test_a_worker_that_starts_beside_one_that_runs_does_not_prepare(workers: Workers) -> None:
    first = workers.start(0, 2)
    while not (workers.marks / "0").exists():
        assert first.poll() is None
    ends([first, workers.start(1, 2)])
    assert workers.preparations() == 1


def test_a_preparation_that_is_killed_is_made_anew_before_anybody_runs(workers: Workers) -> None:
    text = f"{WRITE}[ -e ../killed ] || {{ touch ../killed; kill -KILL $PPID $$; }}\n"
    started = [workers.start(rank, 2, text) for rank in range(3)]
    outputs = [process.communicate(timeout=60)[0] for process in started]
    assert sorted(process.returncode for process in started) == [-signal.SIGKILL, 0, 0], "one was killed"
    assert workers.preparations() == 2
    assert len([output for output in outputs if output]) == 2


def test_in_the_text_the_rank_is_the_nodes(workers: Workers) -> None:
    started = workers.start(3, 1, "N=$RANK", 'echo "[$N, $RANK]"')
    assert ends([started]) == [[7, 3]]


def test_its_variables_are_those_that_the_text_sets_and_unsets(workers: Workers) -> None:
    text = "unset GONE; NEW=$(printf '\\303\\251\\377 x')"
    started = workers.start(0, 1, text, 'echo "[\\"${GONE-none}\\"]"; printf %s "$NEW" > new', GONE="here")
    assert ends([started]) == [["none"]]
    assert (workers.folder / "new").read_bytes() == b"\303\251\377 x"


@pytest.mark.parametrize(("text", "code"), [("set -e\nfalse", 1), ("exit 0", 2), ("kill -TERM $$", 143)])
def test_a_text_that_fails_ends_its_worker(workers: Workers, text: str, code: int) -> None:
    assert workers.start(0, 1, text).wait(60) == code


@pytest.mark.parametrize("words", [[], ["x"], ["x", "ls"], ["x", "sh", "-c"]])
def test_without_a_shells_command_it_says_so(words: list[str]) -> None:
    command = [sys.executable, "-m", "everstep.prepare_once", *words]
    ended = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=False)
    assert ended.returncode == 2
    assert ended.stderr.startswith("everstep.prepare_once: no command of a shell; write ")
