"""Who may ask the page's server for what. Real requests to a real server."""

import asyncio
from collections.abc import Awaitable, Callable, Mapping
from pathlib import Path
from typing import Any

import aiohttp
import pytest

from everstep.cli.main import main
from everstep.cli.ui.actions import command_of
from everstep.cli.ui.sources import LocalRuns
from everstep.errors import BadInput
from tests.ui.page_server import TOKEN, first_event, serve_page, write_run

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
