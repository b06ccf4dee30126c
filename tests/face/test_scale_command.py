"""`everstep scale` asks the job's master; where there is none to ask, it says why and what to do."""

import http.server
import threading
from collections.abc import Iterator
from pathlib import Path

import pytest

from everstep.cli.find_job import locate
from everstep.cli.main import main
from everstep.runtime.job.reasons import JobResult
from everstep.runtime.job.records import JobEnded
from everstep.runtime.journal import journal
from everstep.runtime.store import open_store


class Refusing(http.server.BaseHTTPRequestHandler):
    """A master that says no."""

    def do_POST(self) -> None:
        body = b'{"error":"nodes: 9 is not between 1 and 2, the bounds of trainer"}'
        self.send_response(400)
        self.send_header("Content-Length", str(len(body)))
        self.end_headers()
        self.wfile.write(body)

    def log_request(self, code: int | str = "-", size: int | str = "-") -> None:
        """Not to stderr."""


@pytest.fixture
def refusing() -> Iterator[str]:
    """Its address."""
    server = http.server.HTTPServer(("127.0.0.1", 0), Refusing)
    thread = threading.Thread(target=server.serve_forever)
    thread.start()
    try:
        yield f"127.0.0.1:{server.server_port}"
    finally:
        server.shutdown()
        thread.join()
        server.server_close()


def printed_line(runs: Path, capsys: pytest.CaptureFixture[str]) -> str:
    """The one line that a user sees."""
    assert main(["scale", "r1", "--nodes", "9", "--role", "trainer", "--runs", str(runs)]) == 2
    error = capsys.readouterr().err
    assert error.count("\n") == 1
    return error


def test_without_a_master_it_says_how_to_get_one(runs: Path, capsys: pytest.CaptureFixture[str]) -> None:
    journal.claim(open_store(str(runs.parent / "store")), "u-train", "127.0.0.1:1", 2000.0)
    assert printed_line(runs, capsys) == (
        "everstep scale: r1: no master answers at 127.0.0.1:1 ([Errno 111] Connection refused); its nodes may "
        "continue without it; `everstep workflow resume r1` resumes the run; then scale it\n"
    )


def test_a_training_that_is_over_has_no_size(runs: Path, capsys: pytest.CaptureFixture[str]) -> None:
    claimed, _ = journal.claim(open_store(str(runs.parent / "store")), "u-train", "127.0.0.1:1", 2000.0)
    end_record = JobEnded(time=2001.0, result=JobResult.SUCCEEDED, reason="all nodes finished", error="", exit_code=0)
    claimed.write(claimed.draft([end_record]))
    assert printed_line(runs, capsys) == "everstep scale: r1: its training is over (succeeded: all nodes finished)\n"


def test_a_masters_refusal_is_told_in_its_words(runs: Path, refusing: str, capsys: pytest.CaptureFixture[str]) -> None:
    journal.claim(open_store(str(runs.parent / "store")), "u-train", refusing, 2000.0)
    assert printed_line(runs, capsys) == (
        "everstep scale: r1: refused: nodes: 9 is not between 1 and 2, the bounds of trainer\n"
    )


def test_a_step_that_has_not_begun_is_not_taken_for_one_whose_name_ends_like_it(
    runs: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    jobs = runs / "r1" / "jobs"
    (jobs / "u-train.token").rename(jobs / "u-pre-train.token")
    assert main(["scale", "r1/train", "--nodes", "9", "--runs", str(runs)]) == 2
    hint = "give RUN/STEP with one of its training steps: pre-train"
    assert capsys.readouterr().err == f"everstep scale: r1/train: {hint}\n"
    (jobs / "given-train.token").touch()
    assert locate(runs / "r1", "r1/train")[1] == "given-train"
