"""What a stand-in needs: the spec that the job's own master has left, without what only a platform can do."""

import asyncio
from pathlib import Path

import msgspec
import pytest

from everstep.runtime.job.spec import FaultRule, JobSpec, Oom, Patience, Placement, Resources, RestartScope, RoleSpec
from everstep.runtime.job.spec_problems import problems
from everstep.runtime.journal.journal import claim, is_stood_in_for
from everstep.runtime.master.left_spec import leave_spec, read_spec, without_platform
from everstep.runtime.master.stand_in import stand_in
from everstep.runtime.net.tls import Credentials
from everstep.runtime.store import DirectoryStore, NoSuchKey

RULE = FaultRule(exit_codes=(7,), restart_scope=RestartScope.ALL)
FULL = JobSpec(
    "j",
    {
        "ps": RoleSpec(1, 1, resources=Resources(2.0, 1 << 30), priority=2, spare_nodes=1),
        "worker": RoleSpec(
            4, 2, waits_for=("ps",), restart_scope=RestartScope.REPLICA, fault_rules=(RULE,), scale_out_timeout_s=9.0,
            restart_time_limit_s=8.0, template={"spec": {"containers": [{"env": [{"name": "A", "value": "secret"}]}]}},
        ),
    },
    Patience(silence_s=7.0),
    avoid_hosts=("m1",), host_order=("m2",), hosts="", oom=Oom(factor=3.0), priority_class="high", scheduler_name="s",
)  # fmt: skip


def test_the_spec_of_any_job_is_one_for_nodes_that_join_by_themselves() -> None:
    assert problems(FULL) == []
    left = without_platform(FULL)
    assert problems(left) == []
    assert left.placement is Placement.JOINED
    assert (left.roles["worker"].nodes, left.roles["worker"].min_nodes, left.patience.silence_s) == (4, 2, 7.0)
    assert "secret" not in msgspec.json.encode(left).decode()


def test_the_newest_spec_is_read_and_none_is_missed(tmp_path: Path) -> None:
    store = DirectoryStore(tmp_path)
    with pytest.raises(NoSuchKey):
        read_spec(store, "j")
    leave_spec(store, JobSpec("j", {"worker": RoleSpec(1, 1)}))
    leave_spec(store, FULL)
    assert read_spec(store, "j") == without_platform(FULL)


def test_who_stands_in_says_so_in_each_segment(tmp_path: Path) -> None:
    store = DirectoryStore(tmp_path)
    assert not is_stood_in_for(store, "j")
    claim(store, "j", "a:1", 1.0)
    assert not is_stood_in_for(store, "j")
    journal, _ = claim(store, "j", "b:1", 2.0, stands_in=True)
    journal.write(journal.draft([]))
    assert is_stood_in_for(store, "j")
    claim(store, "j", "a:2", 3.0)
    assert not is_stood_in_for(store, "j")


def test_nobody_stands_in_without_a_spec(tmp_path: Path) -> None:
    store = DirectoryStore(tmp_path)
    claim(store, "j", "a:1", 1.0)
    with pytest.raises(ValueError, match="has left no spec"):
        asyncio.run(stand_in(store, "j", Credentials("t"), "127.0.0.1", print))
    assert not is_stood_in_for(store, "j")
