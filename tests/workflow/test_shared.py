"""What runs share: locks that only so many hold at once, and outputs that are remembered for a while."""

import asyncio
from pathlib import Path

import pytest
import yaml

from everstep.runtime.workflow import RunOptions, execute
from everstep.runtime.workflow.engine.gates import Lock, Memo
from everstep.runtime.workflow.run.run_locks import SharedState
from tests.harness import PATIENCE_S
from tests.workflow.running import manifest_text

LOCK = Lock("default/Mutex/one", 1)
LOCKED = manifest_text("""
  - name: main
    dag: {tasks: [{name: a, template: locked}, {name: b, template: locked}]}
  - name: locked
    synchronization: {mutexes: [{name: one}]}
    container: {image: i, command: [sh, -c, "echo begins >> ran; sleep 0.2; echo ends >> ran"]}
""")


def test_a_lock_is_held_by_as_many_as_its_limit_says_whatever_run_they_are_of(tmp_path: Path) -> None:
    one, two = SharedState(tmp_path, "one"), SharedState(tmp_path, "two")
    assert one.take_locks("one.a", [LOCK])
    assert one.take_locks("one.a", [LOCK])
    assert not two.take_locks("two.a", [LOCK])
    assert one.lock_holders() == {"one.a"}
    one.release_locks("one.a")
    assert two.take_locks("two.a", [LOCK])


def test_of_several_locks_all_are_taken_or_none(tmp_path: Path) -> None:
    one, two = SharedState(tmp_path, "one"), SharedState(tmp_path, "two")
    other = Lock("default/Mutex/other", 1)
    assert one.take_locks("one.a", [other])
    assert not two.take_locks("two.a", [LOCK, other])
    assert one.take_locks("one.b", [LOCK])


def test_remembered_outputs_grow_too_old(tmp_path: Path) -> None:
    shared = SharedState(tmp_path, "one")
    shared.remember(
        "cache", "key", {"parameters": [{"name": "p", "value": "v"}], "artifacts": [], "result": None}, 100.0
    )
    assert shared.look_up(Memo("cache", "key", 10.0), 109.0).hit
    assert not shared.look_up(Memo("cache", "key", 10.0), 111.0).hit
    assert not shared.look_up(Memo("cache", "other", None), 109.0).hit


def test_two_runs_with_one_mutex_take_turns(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    manifest = yaml.safe_load(LOCKED)

    async def both() -> None:
        runs = (execute(manifest, RunOptions(name, tmp_path / "runs", work_dir=tmp_path)) for name in ("one", "two"))
        await asyncio.wait_for(asyncio.gather(*runs), PATIENCE_S)

    asyncio.run(both())
    assert (tmp_path / "ran").read_text().split() == ["begins", "ends"] * 4


def test_a_name_that_is_too_long_for_a_file_is_still_a_lock_a_holder_and_a_cache(tmp_path: Path) -> None:
    nodes = [f"one[0].a({number}:{'ü' * 200})" for number in range(2)]
    lock, other = (Lock(f"default/Mutex/{'ü' * 200}{end}", 1) for end in "ab")
    one, two = SharedState(tmp_path, "one"), SharedState(tmp_path, "two")
    assert one.take_locks(nodes[0], [lock])
    assert not one.take_locks(nodes[1], [lock])
    assert not two.take_locks("two.a", [lock])
    assert two.take_locks("two.a", [other])
    assert one.lock_holders() == {nodes[0]}
    one.release_locks(nodes[0])
    assert one.lock_holders() == set()
    assert one.take_locks(nodes[1], [lock])
    one.remember("c" * 253, "key", {"parameters": [], "artifacts": [], "result": "r"}, 100.0)
    assert two.look_up(Memo("c" * 253, "key", None), 100.0).result == "r"
