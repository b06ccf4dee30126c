"""The face of training: the loop in the documentation, alone and with several ranks."""

import subprocess
import sys
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import everstep
from everstep.runtime.checkpoint.shard.layout import read_shard
from everstep.runtime.data import Sampler, open_dataset
from everstep.runtime.store import DirectoryStore, open_store
from tests.fake_agent import Node
from tests.forks import Forks


def test_importing_everstep_imports_nothing_heavy() -> None:
    script = "import sys, everstep; print({'torch', 'numpy', 'hera', 'msgspec'} & set(sys.modules))"
    completed = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, check=True, timeout=60)
    assert completed.stdout == "set()\n"


def test_each_name_of_training_is_there_and_a_wrong_one_is_not() -> None:
    for name in ("init", "Context", "Checkpointer", "batches", "Batch", "report", "phase"):
        assert getattr(everstep, name)
    with pytest.raises(AttributeError, match="no attribute 'bathces'"):
        everstep.bathces  # type: ignore[attr-defined]  # noqa: B018


def test_a_call_before_init_says_what_is_missing(forks: Forks, tmp_path: Path) -> None:
    script, told_path = tmp_path / "script.py", tmp_path / "told"
    script.write_text("""if True:
        import everstep
        for call in (lambda: everstep.report(loss=1.0), lambda: everstep.phase("x"), lambda: everstep.Checkpointer({})):
            try:
                call()
            except RuntimeError as error:
                print(error)
    """)
    assert forks.run([str(script)], {}, told_path) == 0, told_path.read_text()
    names = ("report", "phase", "Checkpointer")
    assert told_path.read_text().splitlines() == [
        f"everstep.{name} was called before everstep.init()" for name in names
    ]


@pytest.mark.parametrize("world_size", [1, 3])
def test_the_ranks_together_read_each_global_batch_in_the_samplers_order(
    world_size: int, dataset: str, run_script: Any
) -> None:
    ranks = run_script(world_size, 12)
    tokens = open_dataset(dataset).tokens[:].astype(np.int64)
    sampler = Sampler((len(tokens) - 1) // 16, 7, 5)
    for n in range(12):
        inputs = [row for rank in ranks for row in rank["seen"][n][3]]
        targets = [row for rank in ranks for row in rank["seen"][n][4]]
        expected = sampler.indices(7 * n)
        assert inputs == [tokens[i * 16 : i * 16 + 16].tolist() for i in expected]
        assert targets == [tokens[i * 16 + 1 : i * 16 + 17].tolist() for i in expected]
        assert [rank["seen"][n][:2] for rank in ranks] == [[n + 1, 7 * (n + 1)]] * world_size
        assert sum(rank["seen"][n][2] for rank in ranks) == pytest.approx(world_size)
    assert len({rank["weights"] for rank in ranks}) == 1
    assert all(rank["losses"] == ranks[0]["losses"] for rank in ranks)


def test_more_ranks_than_samples_train_on_with_weight_zero(run_script: Any) -> None:
    ranks = run_script(3, 2, 2)
    assert sorted(rank["seen"][0][2] for rank in ranks) == [0.0, 1.5, 1.5]
    assert len({rank["weights"] for rank in ranks}) == 1


def test_without_agent_and_store_it_says_once_that_nothing_is_kept(run_script: Any) -> None:
    warning_text = run_script(1, 2)[0]["stderr"]
    assert warning_text.count("its checkpoints are not kept; set EVERSTEP_STORE") == 1


def test_without_agent_a_script_goes_on_from_its_own_checkpoint_bit_for_bit(run_script: Any, tmp_path: Path) -> None:
    whole = run_script(2, 6)
    store = str(tmp_path / "store")
    assert run_script(2, 4, EVERSTEP_STORE=store)[0]["started"] == 0
    second = run_script(2, 6, EVERSTEP_STORE=store)
    assert second[0]["started"] == 4
    assert second[0]["weights"] == whole[0]["weights"]
    shards = [e.key for e in open_store(store).list("jobs/training_script-alone/") if e.key.endswith(".safetensors")]
    assert [key.split("/")[-2] for key in shards] == ["000001-000000004", "000002-000000006"]
    state, tensors = read_shard(bytearray(open_store(store).get(shards[-1])))
    assert state["batches"] == {"consumed": 42}
    assert state["config"] == {"made": "for a test"}
    assert "model.0.weight" in tensors


def test_under_an_agent_each_iteration_is_told_once_with_its_figures(run_script: Any, tmp_path: Path) -> None:
    node = Node(tmp_path / "node", DirectoryStore(tmp_path / "store"), interval=2)
    node.begin(1)
    place = {"EVERSTEP_AGENT": node.path, "EVERSTEP_ROUND": "1", "RANK": "0", "LOCAL_RANK": "0"}
    try:
        losses = run_script(1, 3, **place)[0]["losses"]
        assert node.keeper.beacon(0) == (3, "end")
    finally:
        node.close()
    assert [report.iteration for report in node.reports] == [1, 2, 3]
    assert [report.values["loss"] for report in node.reports] == losses
    assert [report.values["consumed"] for report in node.reports] == [7, 14, 21]
    assert {report.values["tokens"] for report in node.reports} == {7 * 16}
    assert all(float(report.values["seconds"]) >= float(report.values["stall_s"]) > 0 for report in node.reports)
    assert {holding.iteration for holding in node.persisted} >= {3}
