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
from tests.fake_agent import seat

SHARD = Holding(1, 4, key="k")
WHY = "other shards are missing, or the store does not take its manifest"
NOT_YET = f"the checkpoint of iteration 4 is not committed yet: {WHY}; this node keeps asking"
NEVER = f"the checkpoint of iteration 4 was not committed: {WHY}"


@pytest.mark.parametrize(
    ("rounds", "answers", "commits", "lines"),
    [
        ([1], ["", "manifest"], [(SHARD, "manifest")], []),
        ([1], ["", None], [], []),
        ([1], [*[""] * 50, "manifest"], [(SHARD, "manifest")], [NOT_YET]),
        ([2], ["", "manifest"], [(SHARD, "manifest")], []),
        ([2], [""] * 3, [], [NEVER]),
        ([0], [""] * 3, [], [NEVER]),
        ([1, 1, 1, 2], [""] * 6, [], [NOT_YET, NEVER]),
    ],
    ids=["committed", "overtaken by a newer one", "committed after an outage", "of an earlier round",
         "of an earlier round, and never complete", "between two rounds", "never complete before its round ends"],
)  # fmt: skip
def test_a_shard_is_reported_until_its_checkpoint_is_settled(
    monkeypatch: pytest.MonkeyPatch,
    rounds: list[int],
    answers: list[str | None],
    commits: list[Any],
    lines: list[str],
) -> None:
    """`rounds`: those that run while it is asked about, the last one to the end; 0: none runs."""
    monkeypatch.setattr(keeper_reports, "_COMMIT_TRIES", 3)
    monkeypatch.setattr(keeper_reports, "_COMMIT_PAUSE_S", 0.0)
    noted, said, asked = list[Any](), list[str](), list[Persisted]()

    async def report(message: Persisted) -> str | None:
        asked.append(message)
        return answers[len(asked) - 1]

    async def in_thread(call: Any, *arguments: Any) -> None:
        call(*arguments)

    def seat_now() -> Any:
        round_ = rounds[min(len(asked) // 2, len(rounds) - 1)]
        return seat(round_) if round_ else None

    async def story() -> None:
        callbacks = list[Any]()
        keeper = SimpleNamespace(note_commit=lambda *commit: noted.append(commit))
        dependencies = SimpleNamespace(
            say=said.append, leave_report=None, make_keeper=lambda *them: callbacks.extend(them) or keeper
        )
        reports = KeeperReports(
            "a", cast(Any, SimpleNamespace(report_persisted=report)), Background(), seat_now, cast(Any, in_thread),
            cast(Any, dependencies),
        )  # fmt: skip
        callbacks[0](SHARD)
        await asyncio.sleep(0)
        assert list(reports.pending.values()) == [SHARD]
        await asyncio.wait(reports.pending, timeout=20)
        assert not reports.pending

    asyncio.run(story())
    assert (noted, said, len(asked)) == (commits, lines, len(answers))


def test_the_pauses_between_reports_grow_up_to_a_bound(monkeypatch: pytest.MonkeyPatch) -> None:
    pauses = list[float]()

    async def pause(seconds: float) -> None:
        pauses.append(seconds)

    async def report(_: Persisted) -> str | None:
        return "manifest" if len(pauses) >= 10 else ""

    async def in_thread(*_: Any) -> None:
        return

    async def story() -> None:
        keeper = SimpleNamespace(note_commit=None)
        dependencies = SimpleNamespace(say=None, leave_report=None, make_keeper=lambda *_: keeper)
        reports = KeeperReports(
            "a", cast(Any, SimpleNamespace(report_persisted=report)), Background(), lambda: seat(1),
            cast(Any, in_thread), cast(Any, dependencies),
        )  # fmt: skip
        monkeypatch.setattr(keeper_reports.asyncio, "sleep", pause)
        await reports._report_persisted(SHARD)

    asyncio.run(story())
    assert 0.25 <= pauses[0] <= 0.5
    assert all(2.5 <= pause <= 5.0 for pause in pauses[4:])
