"""What an agent does with the master's answer to a persisted shard."""

import asyncio
from types import SimpleNamespace
from typing import Any, cast

import pytest

from everstep.runtime.agent import keeper_reports
from everstep.runtime.agent.background import Background
from everstep.runtime.agent.keeper_reports import KeeperReports
from everstep.runtime.protocol.holdings import Holding
from everstep.runtime.protocol.messages import Persisted

SHARD = Holding(1, 4, key="k")


@pytest.mark.parametrize(
    ("answers", "commits", "lines"),
    [
        (["", "manifest"], [(SHARD, "manifest")], []),
        (["", None], [], []),
        ([""] * 3, [], ["the checkpoint of iteration 4 was not committed: other shards are missing"]),
    ],
    ids=["committed", "overtaken by a newer one", "never complete"],
)
def test_a_shard_is_reported_until_its_checkpoint_is_settled(
    monkeypatch: pytest.MonkeyPatch, answers: list[str | None], commits: list[Any], lines: list[str]
) -> None:
    monkeypatch.setattr(keeper_reports, "_COMMIT_TRIES", 3)
    monkeypatch.setattr(keeper_reports, "_COMMIT_PAUSE_S", 0.0)
    noted, said, asked = list[Any](), list[str](), list[Persisted]()

    async def report(message: Persisted) -> str | None:
        asked.append(message)
        return answers[len(asked) - 1]

    async def in_thread(call: Any, *arguments: Any) -> None:
        call(*arguments)

    async def story() -> None:
        callbacks = list[Any]()
        keeper = SimpleNamespace(note_commit=lambda *commit: noted.append(commit))
        dependencies = SimpleNamespace(
            say=said.append, leave_report=None, make_keeper=lambda *them: callbacks.extend(them) or keeper
        )
        reports = KeeperReports(
            "a", cast(Any, SimpleNamespace(report_persisted=report)), Background(), lambda: None, cast(Any, in_thread),
            cast(Any, dependencies),
        )  # fmt: skip
        callbacks[0](SHARD)
        await asyncio.sleep(0)
        assert list(reports.pending.values()) == [SHARD]
        await asyncio.wait(reports.pending, timeout=20)
        assert not reports.pending

    asyncio.run(story())
    assert (noted, said, len(asked)) == (commits, lines, len(answers))
