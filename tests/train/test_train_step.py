"""The parts of the train step that need no job."""

import io
import json
import os
import stat
from pathlib import Path

import pytest

from everstep.runtime.checkpoint.stored.manifest import encode_manifest, make_commit
from everstep.runtime.master import Progress
from everstep.runtime.net.token import shared_token
from everstep.runtime.protocol.holdings import Holding
from everstep.runtime.store import open_store
from everstep.steps.entry import StepError
from everstep.steps.train import Config
from everstep.steps.train.nodes import stopped_for_good
from everstep.steps.train.run import ProgressLines, checkpoint_parameters, run


def test_a_retry_finds_the_token_of_the_first_try(tmp_path: Path) -> None:
    first = shared_token(tmp_path / "jobs/j.token")
    assert shared_token(tmp_path / "jobs/j.token") == first
    assert shared_token(tmp_path / "jobs/k.token") != first
    assert stat.S_IMODE((tmp_path / "jobs/j.token").stat().st_mode) == 0o600
    assert sorted(os.listdir(tmp_path / "jobs")) == ["j.token", "k.token"]


def test_progress_is_told_at_most_twice_a_second_and_reasons_at_once(tmp_path: Path) -> None:
    out, now, argo = io.StringIO(), [10.0], tmp_path / "progress"
    lines = ProgressLines(200, out, lambda: now[0], {"ARGO_PROGRESS_FILE": str(argo)})
    lines.show(Progress(0, 2, 1, "the job begins"))
    for iteration in range(1, 5):
        lines.show(Progress(iteration, 2, 1, "the job begins", loss=4.0 - iteration, stall=iteration / 2))
        now[0] += 0.2
    assert out.getvalue().splitlines() == [
        "the job begins",
        "iteration 1/200  loss 3.00  2 nodes  stall 0.5 %",
        "iteration 4/200  loss 0.00  2 nodes  stall 2.0 %",
    ]
    assert lines.loss == 0.0
    assert argo.read_text() == "4/200"
    assert lines.rate == pytest.approx(1 / 0.2)


def test_a_training_of_unknown_length_tells_what_is_done_alone(tmp_path: Path) -> None:
    out, argo = io.StringIO(), tmp_path / "progress"
    ProgressLines(0, out, lambda: 10.0, {"ARGO_PROGRESS_FILE": str(argo)}).show(Progress(7, 2, 1, "goes on"))
    assert out.getvalue() == "goes on\niteration 7  2 nodes\n"
    assert not argo.exists()


def test_nodes_are_left_training_unless_the_run_was_stopped_for_good(tmp_path: Path) -> None:
    assert stopped_for_good(tmp_path)
    (tmp_path / "workflow.json").write_text('{"spec": {}}')
    assert not stopped_for_good(tmp_path)
    (tmp_path / "workflow.json").write_text('{"spec": {"shutdown": "Terminate"}}')
    assert stopped_for_good(tmp_path)


def test_an_unexpected_error_of_the_master_is_one_line_and_asks_for_another_try(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    async def fails(*_: object, **__: object) -> None:
        raise KeyError("two\nlines")

    monkeypatch.setattr("everstep.runtime.master.run", fails)
    monkeypatch.setenv("EVERSTEP_RUN_DIR", str(tmp_path / "run"))
    with pytest.raises(StepError) as caught:
        run(Config(dataset="d", script="mine.py", store=str(tmp_path / "store"), job="j"))
    assert caught.value.code == 75
    log = tmp_path / "run/logs/j.master.log"
    assert str(caught.value).endswith(f"KeyError: 'two\\nlines'; traceback in {log}")
    assert "Traceback" in log.read_text()


def test_parameters_are_counted_in_the_header_of_the_shard(tmp_path: Path) -> None:
    store = open_store(str(tmp_path))
    shapes = {"model.a": [3, 4], "model.b": [5], "optimizer.a": [3, 4]}
    header = json.dumps({name: {"dtype": "F32", "shape": shape} for name, shape in shapes.items()}).encode()
    store.put("c/rank-00000.safetensors", len(header).to_bytes(8, "little") + header)
    size = 8 + len(header)
    holding = Holding(1, 3, size=size, key="c/rank-00000.safetensors", digest="d" * 32)
    store.put("c/manifest.json", encode_manifest(make_commit("j", 1, [holding])))
    assert checkpoint_parameters(store, "c") == 17
