"""Who may ask the page's server for what. Real requests to a real server."""

import asyncio
import gc
import itertools
import socket
from collections.abc import Awaitable, Callable, Iterator, Mapping
from pathlib import Path
from typing import Any

import aiohttp
import pytest

from everstep.cli.main import main
from everstep.cli.ui.actions import command_of
from everstep.cli.ui.sources import LocalRuns, OpenedRun
from everstep.errors import BadInput
from everstep.runtime.system.rotate import rotate
from everstep.runtime.workflow.run.run_folder import launcher_pid
from tests.harness import wait_until
from tests.ui.page_server import TOKEN, first_event, first_events, serve_page, served_from, write_run

BEARER = {"Authorization": f"Bearer {TOKEN}"}


@pytest.fixture
def runs(tmp_path: Path) -> Path:
    write_run(tmp_path / "runs", "one")
    return tmp_path / "runs"


def ask(runs: Path, act: Callable[[aiohttp.ClientSession, str], Awaitable[object]]) -> Any:
    async def asking() -> object:
        async with serve_page(runs) as address, aiohttp.ClientSession() as session:
            return await act(session, address)

    return asyncio.run(asking())


def status(runs: Path, path: str, headers: Mapping[str, str]) -> object:
    async def get(session: aiohttp.ClientSession, address: str) -> int:
        async with session.get(address + path, headers=headers) as answer:
            return answer.status

    return ask(runs, get)


def test_the_page_itself_needs_no_token_and_allows_only_its_own_scripts(runs: Path) -> None:
    async def get(session: aiohttp.ClientSession, address: str) -> tuple[int, str]:
        async with session.get(f"{address}/") as answer:
            return answer.status, answer.headers["Content-Security-Policy"]

    code, policy = ask(runs, get)
    assert code == 200
    assert "default-src 'none'" in policy
    assert "unsafe" not in policy


@pytest.mark.parametrize("path", ["/api/list", "/api/run?place=here&name=one"])
def test_data_need_the_token(runs: Path, path: str) -> None:
    assert status(runs, path, {}) == 401
    assert status(runs, path, {"Authorization": "Bearer another"}) == 401


def test_another_name_for_this_server_is_refused(runs: Path) -> None:
    assert status(runs, "/", {"Host": "evil.example"}) == 403
    assert status(runs, "/api/list", {**BEARER, "Host": "evil.example:80"}) == 403


def test_another_sites_page_is_refused_even_with_the_token(runs: Path) -> None:
    assert status(runs, "/api/list", {**BEARER, "Origin": "http://evil.example"}) == 403


@pytest.mark.parametrize(
    "wish",
    [
        {"place": "here", "name": "two", "what": "stop"},
        {"place": "here", "name": "../one", "what": "stop"},
        {"place": "there", "name": "one", "what": "stop"},
        {"place": "here", "name": "one", "what": "delete"},
        {"place": "here", "name": "one", "what": "scale", "job": "--help", "nodes": 1},
        {"place": "here"},
    ],
)
def test_a_wish_that_names_nothing_known_does_nothing(runs: Path, wish: dict[str, object]) -> None:
    async def post(session: aiohttp.ClientSession, address: str) -> int:
        async with session.post(f"{address}/api/act", json=wish, headers=BEARER) as answer:
            return answer.status

    assert ask(runs, post) == 400


def test_a_button_runs_the_verb_that_a_person_would_type(runs: Path) -> None:
    async def post(session: aiohttp.ClientSession, address: str) -> dict[str, object]:
        wish = {"place": "here", "name": "one", "what": "stop"}
        async with session.post(f"{address}/api/act", json=wish, headers=BEARER) as answer:
            return await answer.json()

    deed = ask(runs, post)
    assert isinstance(deed, dict)
    assert deed["command"] == f"everstep workflow stop one --runs {runs}"
    assert deed["code"] == 2
    assert "has already ended" in str(deed["output"])


def test_the_command_of_scale_names_step_and_number() -> None:
    source = LocalRuns(Path("runs"))
    assert command_of(source, "one", "scale", "train", 3) == ["scale", "one/train", "--nodes", "3", "--runs", "runs"]


def test_a_log_outside_of_the_run_is_not_read(runs: Path) -> None:
    (runs / "secret.log").write_text("secret\n")
    with pytest.raises(BadInput, match="no log"):
        next(LocalRuns(runs).follow("one", "../../secret"))


def test_logs_of_nodes_are_those_of_their_steps(runs: Path) -> None:
    for name in ("train", "u-train/worker-0-0", "u-tune/worker-0-0"):
        path = runs / "one" / "logs" / f"{name}.log"
        path.parent.mkdir(exist_ok=True)
        path.write_text(f"from {name}\n")
    source = LocalRuns(runs)
    assert {"train", "train/worker-0-0", "tune/worker-0-0"} <= {*source.logs("one")}
    assert next(source.follow("one", "tune/worker-0-0")) == "from u-tune/worker-0-0\n"


def test_a_log_is_followed_by_whole_lines(runs: Path) -> None:
    path = runs / "one" / "logs" / "train.log"
    path.write_text("first\nsec")
    texts = LocalRuns(runs).follow("one", "train")
    assert next(texts) == "first\n"
    with path.open("a") as file:
        file.write("ond\n")
    assert next(texts) == "second\n"
    assert next(texts) == ""


def test_a_log_that_begins_anew_is_shown_once(runs: Path) -> None:
    path = runs / "one" / "logs" / "train.log"
    path.write_text("first\n")
    texts = LocalRuns(runs).follow("one", "train")
    assert next(texts) == "first\n"
    assert rotate(path, 1)
    with path.open("a") as file:
        file.write("2\n")
    assert [next(texts), next(texts)] == ["2\n", ""]


def test_a_thousand_runs_are_listed_and_one_that_cannot_be_read_is_named(tmp_path: Path) -> None:
    for number in range(1000):
        write_run(tmp_path, f"run-{number}", began=number)
    (tmp_path / "run-7" / "workflow.json").write_text("{")
    source = LocalRuns(tmp_path)
    entries = source.entries()
    assert len(entries) == 1000
    assert entries["run-7"].phase == "Unreadable"
    assert entries["run-8"].phase == "Succeeded"


def test_a_run_that_nobody_runs_is_interrupted(tmp_path: Path) -> None:
    write_run(tmp_path, "one", "Running")
    assert LocalRuns(tmp_path).entries()["one"].phase == "Interrupted"


def test_a_runs_data_come_as_an_event(runs: Path) -> None:
    async def read(session: aiohttp.ClientSession, address: str) -> object:
        return await first_event(session, f"{address}/api/run?place=here&name=one", "run")

    run = ask(runs, read)
    assert isinstance(run, dict)
    assert [step["name"] for step in run["steps"]] == ["train", "evaluate"]
    assert run["phase"] == "Succeeded"


def test_a_run_whose_files_are_nonsense_is_named_and_the_server_goes_on(runs: Path) -> None:
    (runs / "one" / "workflow.json").write_text(
        '{"metadata": {"name": "one"}, "spec": 7, "status": {"nodes": {"a": 1}}}'
    )

    async def read(session: aiohttp.ClientSession, address: str) -> tuple[object, object]:
        trouble = await first_event(session, f"{address}/api/run?place=here&name=one", "trouble")
        return trouble, await first_event(session, f"{address}/api/list", "runs")

    trouble, listed = ask(runs, read)
    assert "one cannot be shown now" in trouble["text"]
    assert [entry["name"] for entry in listed["changed"]] == ["one"]


def test_a_port_that_is_none_is_refused_in_one_line(runs: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["ui", "--runs", str(runs), "--port", "70000"]) == 2
    assert capsys.readouterr().err.count("\n") == 1


def test_the_token_is_in_a_file_of_the_user_not_in_the_browsers_command_line(
    runs: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    tokens, opened = list[str](), dict[str, tuple[int, str]]()

    async def serve(_: object, listener: socket.socket, token: str) -> None:
        tokens.append(token)
        listener.close()

    def open_in_browser(url: str) -> None:
        path = Path(url.removeprefix("file://"))
        opened[url] = path.stat().st_mode & 0o777, path.read_text()

    monkeypatch.setattr("everstep.cli.ui.server.serve", serve)
    monkeypatch.setattr("everstep.cli.ui.webbrowser.open", open_in_browser)
    assert main(["ui", "--open", "--runs", str(runs)]) == 0
    address = capsys.readouterr().out.splitlines()[0]
    ((url, (mode, text)),) = opened.items()
    assert address.endswith(f"/#{tokens[0]}")
    assert tokens[0] not in url
    assert (mode, f"url={address}" in text) == (0o600, True)
    assert not Path(url.removeprefix("file://")).exists(), "the page has ended"


def test_a_private_folder_among_the_runs_hides_no_run(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("one", "private"):
        write_run(tmp_path, name)
    is_file = Path.is_file

    def is_file_seen(path: Path) -> bool:
        if path.parent.name == "private":
            raise PermissionError(13, "Permission denied", str(path))
        return is_file(path)

    monkeypatch.setattr(Path, "is_file", is_file_seen)
    assert [*LocalRuns(tmp_path).entries()] == ["one"]
    assert main(["workflow", "list", "--runs", str(tmp_path)]) == 0


class OnceUnreadable(LocalRuns):
    """Its second look at a run fails, and the second at a log."""

    def __init__(self, runs: Path) -> None:
        super().__init__(runs)
        self._opens, self._reads = itertools.count(1), itertools.count(1)

    def open(self, name: str) -> OpenedRun:
        if next(self._opens) == 2:
            raise OSError("a stale handle")
        return super().open(name)

    def follow(self, name: str, log: str) -> Iterator[str]:
        for text in super().follow(name, log):
            if next(self._reads) == 2:
                raise OSError("a stale handle")
            yield text


@pytest.mark.parametrize(
    ("flags", "kinds"), [("", ["run", "trouble", "run"]), ("&log=train", ["log", "log", "log"])], ids=["run", "log"]
)
def test_after_a_look_that_failed_all_is_shown_again(
    runs: Path, flags: str, kinds: list[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("everstep.cli.ui.server.EVERY_S", 0.01)
    (runs / "one" / "logs" / "train.log").write_text("first\n")

    async def look() -> list[tuple[str, Any]]:
        async with served_from(OnceUnreadable(runs)) as address, aiohttp.ClientSession() as session:
            return await first_events(session, f"{address}/api/run?place=here&name=one{flags}", {*kinds}, len(kinds))

    first, trouble, again = asyncio.run(look())
    assert [kind for kind, _ in (first, trouble, again)] == kinds
    assert "a stale handle" in trouble[1]["text"]
    assert again == first


AGAIN = """
apiVersion: argoproj.io/v1alpha1
kind: Workflow
metadata: {name: again}
spec:
  entrypoint: main
  templates:
  - name: main
    container:
      image: i
      command: [sh, -c, "test -e begun || { touch begun; exit 1; }; until test -e go; do sleep 0.05; done"]
"""


def test_a_run_that_the_page_runs_again_goes_on_when_the_server_has_ended(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("everstep.cli.ui.actions.EARLY_S", 0.0)
    monkeypatch.chdir(tmp_path)
    Path("again.yaml").write_text(AGAIN)
    assert main(["workflow", "run", "again.yaml", "--work-dir", ".", "--name", "again"]) == 1
    folder = tmp_path / "runs" / "again"

    async def retry(session: aiohttp.ClientSession, address: str) -> None:
        wish = {"place": "here", "name": "again", "what": "retry"}
        async with session.post(f"{address}/api/act", json=wish, headers=BEARER) as answer:
            assert (await answer.json())["code"] == 0
        await asyncio.to_thread(wait_until, lambda: launcher_pid(folder), "the launcher")

    ask(folder.parent, retry)
    gc.collect()
    Path("go").touch()
    wait_until(lambda: '"Succeeded"' in (folder / "workflow.json").read_text(), "the run's end")
