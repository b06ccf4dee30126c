"""Run a command as a user does, and read what it says."""

import os
import re
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

from benchmarks.acceptance import Line
from tests.harness import ROOT

EVERSTEP = str(Path(sys.executable).with_name("everstep"))
PIPELINE = (sys.executable, str(ROOT / "pipelines/llama_finetune.py"))
PATIENCE_S = 600.0


@dataclass(frozen=True)
class Answer:
    """What a command said, and how it ended."""

    code: int
    text: str
    seconds: float

    @property
    def last(self) -> str:
        """Its last line."""
        return next((line for line in reversed(self.text.splitlines()) if line.strip()), "")


def ask(
    folder: Path, words: Sequence[str], variables: Mapping[str, str] | None = None, patience_s: float = PATIENCE_S
) -> Answer:
    """Run the command there to its end."""
    began = time.monotonic()
    completed = subprocess.run(
        words,
        cwd=folder,
        env={**os.environ, **(variables or {})},
        timeout=patience_s,
        check=False,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        errors="replace",
    )
    return Answer(completed.returncode, completed.stdout, time.monotonic() - began)


def one_line(promise: str, answer: Answer, pattern: str, code: int = 2) -> Line:
    """The command must end with that code and one line in which the pattern is found."""
    lines = [line for line in answer.text.splitlines() if line.strip()]
    holds = answer.code == code and len(lines) == 1 and bool(re.search(pattern, lines[0]))
    exit_text = f"exit {answer.code}, {len(lines)} lines: {answer.last}"
    return Line(promise, f"exit {code}, one line: {pattern}", exit_text[:300], holds)


class Going:
    """A command that runs in a process group of its own, as in a terminal."""

    def __init__(self, folder: Path, words: Sequence[str]) -> None:
        self._process = subprocess.Popen(
            words, cwd=folder, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True, start_new_session=True
        )
        self._lines: list[str] = []
        self._reader = threading.Thread(target=self._read, daemon=True)
        self._reader.start()

    def _read(self) -> None:
        assert self._process.stdout is not None
        self._lines.extend(self._process.stdout)

    def interrupt(self) -> None:
        """Ctrl-C: SIGINT to the whole group."""
        os.killpg(self._process.pid, signal.SIGINT)

    def send(self, signum: int) -> None:
        """A signal to the command alone."""
        self._process.send_signal(signum)

    def end(self) -> Answer:
        """Wait for its end."""
        began = time.monotonic()
        code = self._process.wait(timeout=PATIENCE_S)
        self._reader.join(timeout=PATIENCE_S)
        return Answer(code, "".join(self._lines), time.monotonic() - began)

    def kill(self) -> None:
        """End it if it goes on."""
        if self._process.poll() is None:
            os.killpg(self._process.pid, signal.SIGKILL)
            self._process.wait()


@contextmanager
def going(folder: Path, words: Sequence[str]) -> Iterator[Going]:
    """Run a command beside the block."""
    command = Going(folder, words)
    try:
        yield command
    finally:
        command.kill()
