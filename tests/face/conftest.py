"""A run whose job a journal tells of."""

import json
from pathlib import Path

import pytest

from everstep.runtime.job.events import NodeGone
from everstep.runtime.job.records import Committed
from everstep.runtime.job.spec import RoleSpec
from everstep.runtime.journal import journal
from everstep.runtime.protocol.holdings import Holding
from everstep.runtime.store import open_store
from tests.job.world import World, platform


@pytest.fixture
def runs(tmp_path: Path) -> Path:
    """A run folder whose job lost a node and trains again."""
    world = World(platform({"trainer": RoleSpec(2, 1)}))
    world.join_all()
    world.held["trainer-0-0"] = (Holding(1, 40, node="trainer-0-0", address="a"),)
    world.records.append(Committed(time=world.state.time, round=1, iteration=40, key="jobs/u-train/m.json"))
    world.send(NodeGone("trainer-1-0", "pod deleted"))
    world.join_all()
    store = open_store(str(tmp_path / "store"))
    claimed, _ = journal.claim(store, "u-train", "m:1", 1.0)
    claimed.write(claimed.draft(world.records[1:]))
    folder = tmp_path / "runs" / "r1"
    (folder / "jobs").mkdir(parents=True)
    (folder / "jobs" / "u-train.token").write_text("secret")
    parameters = [{"name": "store", "value": str(tmp_path / "store")}]
    (folder / "workflow.json").write_text(
        json.dumps({"metadata": {"uid": "u"}, "spec": {"arguments": {"parameters": parameters}}})
    )
    return tmp_path / "runs"
