"""What is damaged in memory before it was digested, or is not what was announced, is named and never offered."""

import threading
from typing import Any

import pytest

from everstep.runtime.checkpoint.errors import KeeperError, RestoreError
from everstep.runtime.checkpoint.node import keeper_io
from everstep.runtime.protocol.worker_link import LinkError, Staged
from tests.checkpoint.test_keeper import train
from tests.fake_agent import PATIENCE_S
from tests.harness import wait_until


def test_a_state_that_is_damaged_before_its_digest_is_known_is_named_and_the_next_one_is_persisted(
    node: Any, make_state: Any, monkeypatch: pytest.MonkeyPatch, caplog: Any
) -> None:
    broken, real = threading.Event(), keeper_io.seal

    def seal(file: memoryview) -> str:
        if broken.is_set():
            raise RestoreError("not a shard of Everstep")
        return real(file)

    broken.set()
    monkeypatch.setattr(keeper_io, "seal", seal)
    node.begin(1)
    checkpointer = train(node, state := make_state(1), 1)
    with pytest.raises(LinkError, match=r"iteration 1 (cannot be persisted: not a shard|is not staged)"):
        checkpointer.flush(1)
    wait_until(lambda: node.keeper.holdings("") == (), "nothing damaged is held", PATIENCE_S)
    broken.clear()
    checkpointer.save(2, state)
    assert checkpointer.flush(2) == "jobs/job/checkpoints/000001-000000002/manifest.json"
    assert "iteration 1 of round 1 is damaged in memory" in caplog.text


def test_a_stage_of_another_iteration_than_the_slot_was_given_for_is_refused(node: Any, make_state: Any) -> None:
    node.begin(1)
    train(node, make_state(1), 1)
    with node.keeper.open_shard(1, 1, 0) as shard:
        whole = bytes(shard)
    slot = node.keeper.acquire(0, 2)
    (path,) = node.shm.iterdir()
    with path.open("r+b") as file:
        file.seek(slot.offset)
        file.write(whole)
    with pytest.raises(KeeperError, match="for another iteration"):
        node.keeper.commit_stage(0, Staged(slot.slot, 3, len(whole), False))
