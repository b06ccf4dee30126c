"""FSDP1, the names of DLRover's API, a Hugging Face Trainer: saved, killed, loaded, bit for bit."""

import json
import os
import subprocess
import sys
from itertools import pairwise
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import torch
from torch.distributed.checkpoint.format_utils import dcp_to_torch_save

import everstep.session
from everstep.flash_checkpoint import DdpCheckpointer, StorageType
from everstep.runtime.checkpoint.errors import RestoreError, StateError
from everstep.runtime.checkpoint.stored.verify import find_problems, list_checkpoints
from everstep.runtime.store import DirectoryStore
from tests.forks import Forks
from tests.harness import wait_until

FOLDER = Path(__file__).parent


def environment(**more: str) -> dict[str, str]:
    inherited = {name: value for name, value in os.environ.items() if not name.startswith("EVERSTEP_")}
    return {**inherited, "OMP_NUM_THREADS": "1", **more}


@pytest.mark.long
def test_fsdp1_saves_sharded_and_loads_at_another_world_size_without_an_agent(tmp_path: Path, same: Any) -> None:
    store, result = tmp_path / "store", tmp_path / "result"
    command = [sys.executable, str(FOLDER / "fsdp1_script.py"), str(store), str(result), "2", "3", "1"]
    variables = environment(EVERSTEP_KEEP_LAST="0")
    completed = subprocess.run(command, env=variables, timeout=500, check=False, capture_output=True, text=True)
    assert completed.returncode == 0, completed.stderr
    rounds = [torch.load(f"{result}-{number}") for number in range(3)]
    assert [result["done"] for result in rounds] == [0, 2, 4]
    for before, after in pairwise(rounds):
        assert same(after["loaded"], before["trained"])
    for number, trained in enumerate(result["trained"] for result in rounds):
        read = tmp_path / f"read-{number}"
        dcp_to_torch_save(store / f"{2 * number + 2}", read)
        assert same(torch.load(read)["model"], trained["model"])
    checkpoints = list_checkpoints(DirectoryStore(store), "jobs/fsdp1_script-alone/")
    assert [(checkpoint.round, checkpoint.iteration, checkpoint.shards) for checkpoint in checkpoints] == [
        (1, 1, 2), (1, 2, 2), (2, 3, 3), (2, 4, 3), (3, 5, 1), (3, 6, 1),
    ]  # fmt: skip
    for checkpoint in checkpoints:
        assert checkpoint.commit is not None
        assert list(find_problems(DirectoryStore(store), checkpoint.folder, checkpoint.commit)) == []


@pytest.fixture
def worker(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Any:
    """This process as a worker that never calls everstep.init(), in a folder of its own."""
    monkeypatch.setattr(everstep.session, "_session", None)
    monkeypatch.chdir(tmp_path)

    def become(**variables: str) -> None:
        monkeypatch.setattr(everstep.session, "_session", None)
        for name, value in variables.items():
            monkeypatch.setenv(name, value)

    return become


def test_memory_and_disk_saves_of_dlrovers_api_all_commit_in_any_order(node: Any, worker: Any, same: Any) -> None:
    node.begin(1)
    worker(EVERSTEP_AGENT=node.path, EVERSTEP_ROUND="1", RANK="0", LOCAL_RANK="0")
    checkpointer = DdpCheckpointer("unused")
    assert checkpointer.load_checkpoint() == {}
    model = torch.nn.Linear(4, 3)
    memory, disk = StorageType.MEMORY, StorageType.DISK
    for step, kinds in {1: [memory, disk], 2: [memory], 3: [disk, memory], 4: [disk], 5: [memory]}.items():
        model.weight.data.fill_(step)
        for kind in kinds:
            checkpointer.save_checkpoint(step, {"model": model.state_dict(), "step": step}, f"at/{step}", kind)
    checkpointer.wait_latest_checkpoint()
    assert {holding.iteration for holding in node.persisted} == {1, 3, 4}
    node.keeper.worker_died(0)
    node.begin(2, node.newest())
    worker(EVERSTEP_ROUND="2")
    loaded = DdpCheckpointer("unused").load_checkpoint()
    assert loaded["step"] == 5
    assert same(loaded["model"], dict(model.state_dict()))


def test_what_users_of_dlrover_are_told_is_true_when_pasted(worker: Any, tmp_path: Path, same: Any) -> None:
    worker()
    (block,) = [
        block.partition("```")[0]
        for block in (FOLDER.parents[1] / "docs/how-to/from-dlrover.md").read_text().split("```python\n")
        if block.startswith("from everstep.flash_checkpoint")
    ]
    saving, assignment, loading = block.partition("state_dict = ")
    saved_state = {"weight": torch.arange(3), "step": 7}
    names: dict[str, Any] = {"checkpoint_dir": str(tmp_path), "step": 7, "path": "7.pt", "state_dict": saved_state}
    exec(saving, names)
    names["checkpointer"].wait_latest_checkpoint()
    exec(assignment + loading, names)
    assert same(names["state_dict"], saved_state)
    assert list(tmp_path.glob("jobs/*/checkpoints/000001-000000007/manifest.json"))


def test_a_disk_save_leaves_a_file_that_torch_loads_and_a_memory_save_none(
    worker: Any, tmp_path: Path, same: Any
) -> None:
    worker(EVERSTEP_STORE=str(tmp_path / "store"), EVERSTEP_JOB="j", RANK="0")
    model = torch.nn.Linear(4, 3)
    optimizer = torch.optim.AdamW(model.parameters())
    model(torch.ones(4)).sum().backward()
    optimizer.step()
    checkpointer = DdpCheckpointer(str(tmp_path))
    files = [tmp_path / "out" / f"checkpoint-{step}.pt" for step in (1, 2)]
    for step, kind in ((1, StorageType.MEMORY), (2, StorageType.DISK)):
        state = {"model": model.state_dict(), "optimizer": optimizer.state_dict(), "step": step}
        checkpointer.save_checkpoint(step, state, str(files[step - 1]), storage_type=kind)
    expected = {"model": {name: value.clone() for name, value in model.state_dict().items()}, "step": 2}
    with torch.no_grad():
        model.weight.zero_()  # Training goes on: the file is of what was saved.
    checkpointer.wait_latest_checkpoint()
    assert [path.name for path in (tmp_path / "out").iterdir()] == ["checkpoint-2.pt"]
    loaded = torch.load(files[1], weights_only=True)
    assert same({name: loaded[name] for name in expected}, expected)
    again = torch.optim.AdamW(torch.nn.Linear(4, 3).parameters())
    again.load_state_dict(loaded["optimizer"])


def test_a_file_that_cannot_be_written_is_an_error_and_the_store_has_the_state(worker: Any, tmp_path: Path) -> None:
    worker(EVERSTEP_STORE=str(tmp_path / "store"), EVERSTEP_JOB="j", RANK="0")
    (tmp_path / "file").touch()
    checkpointer = DdpCheckpointer(str(tmp_path))
    checkpointer.save_checkpoint(1, {"step": 1, "x": torch.ones(2)}, str(tmp_path / "file" / "a.pt"))
    with pytest.raises(OSError, match="file"):
        checkpointer.wait_latest_checkpoint()
    assert DdpCheckpointer(str(tmp_path)).load_checkpoint()["step"] == 1


def test_a_script_that_ends_before_it_learns_that_its_last_file_cannot_be_written_says_so(tmp_path: Path) -> None:
    (tmp_path / "taken").mkdir()
    script = tmp_path / "script.py"
    script.write_text(
        "import torch\n"
        "from everstep.flash_checkpoint import DdpCheckpointer\n"
        "DdpCheckpointer('store').save_checkpoint(1, {'x': torch.ones(2)}, 'taken')\n"
    )
    command = [sys.executable, str(script)]
    completed = subprocess.run(
        command, cwd=tmp_path, env=environment(), timeout=120, check=False, capture_output=True, text=True
    )
    assert completed.returncode == 0, completed.stderr
    assert "everstep: taken could not be written: [Errno 21] Is a directory" in completed.stderr.splitlines()[-1]
    assert list(tmp_path.glob("store/jobs/*/checkpoints/000001-000000001/manifest.json"))


def test_a_checkpoint_is_loaded_by_the_path_that_it_was_saved_under(worker: Any, tmp_path: Path) -> None:
    worker()
    checkpointer = DdpCheckpointer(str(tmp_path))
    for step in (1, 2):
        checkpointer.save_checkpoint(step, {"weight": torch.full((3,), step)}, path=f"checkpoint-{step}.pt")
    checkpointer.wait_latest_checkpoint()
    again = DdpCheckpointer(str(tmp_path))
    assert again.load_checkpoint("checkpoint-1.pt")["weight"].tolist() == [1, 1, 1]
    assert again.load_checkpoint()["weight"].tolist() == [2, 2, 2]
    with pytest.raises(RestoreError, match=r"checkpoint-3.pt: the store has no committed"):
        again.load_checkpoint("checkpoint-3.pt")


def test_a_trainer_that_is_killed_goes_on_bit_for_bit(node: Any, tmp_path: Path, same: Any, forks: Forks) -> None:
    folder, pipe = tmp_path / "trainer", tmp_path / "pipe"
    for folder_to_make in (folder, tmp_path / "faults"):
        folder_to_make.mkdir()
    os.mkfifo(pipe)
    place = {"EVERSTEP_AGENT": node.path, "RANK": "0", "LOCAL_RANK": "0", "WORLD_SIZE": "1"}
    place |= {"MASTER_ADDR": "127.0.0.1", "MASTER_PORT": "0", "EVERSTEP_FAULT_DIR": str(tmp_path / "faults")}
    script = forks.start([str(FOLDER / "trainer_script.py"), str(folder), str(pipe)], {}, tmp_path / "log")
    with os.fdopen(os.open(pipe, os.O_RDWR), "w", buffering=1) as to_script:  # To open it so waits for nobody.
        codes: list[int] = []

        def new_codes() -> list[int]:
            codes_text = (folder / "codes").read_text() if (folder / "codes").exists() else ""
            return [int(line) for line in codes_text.splitlines()][len(codes) :]

        def run(name: str, **variables: str) -> int:
            to_script.write(json.dumps({"RESULT": str(tmp_path / name), **variables}) + "\n")
            codes.extend(wait_until(new_codes, f"the end of {name}"))
            return codes[-1]

        assert run("undisturbed") == 0
        node.begin(1)
        restored = []
        points = [
            "checkpoint.mid_copy,iteration=4",
            "script.evaluation,iteration=5",
            "checkpoint.after_commit,iteration=5",
        ]
        for round_, fault in enumerate(points, 1):
            assert run("killed", **place, EVERSTEP_FAULT=f"{fault}=kill", EVERSTEP_ROUND=str(round_)) == -9
            node.keeper.worker_died(0)
            node.begin(round_ + 1, node.newest())
            restored.append(node.keeper.wait_for_restore(0).iteration)
        assert restored == [3, 4, 5]  # Inside an epoch, and at the end of one, whose evaluation was repeated.
        assert run("resumed", **place, EVERSTEP_ROUND="4") == 0
    assert forks.wait(script) == 0
    undisturbed, resumed = torch.load(tmp_path / "undisturbed"), torch.load(tmp_path / "resumed")
    assert undisturbed["steps"] == 10
    assert same(resumed, undisturbed)
    assert node.persisted[-1].iteration == 10


class Adapted(torch.nn.Linear):
    """What a Trainer may take for a model of PEFT; its adapter is in no file."""

    active_adapters = ("default",)

    def load_adapter(self, *_: object, **__: object) -> None:
        raise FileNotFoundError("adapter_model.safetensors")


def train_one_step(model: torch.nn.Module, scaler: Any = None) -> dict[str, torch.Tensor]:
    """What a Trainer does with its callback, and with the folder that it resumes from. Returns the weights that it
    began with."""
    from transformers.trainer import Trainer
    from transformers.trainer_callback import TrainerControl, TrainerState

    from everstep.huggingface import EverstepCallback

    optimizer = torch.optim.SGD(model.parameters())
    schedule = torch.optim.lr_scheduler.ConstantLR(optimizer)
    settings: Any = SimpleNamespace(fsdp=False, fsdp_config=None)
    callback, state, control = EverstepCallback(), TrainerState(), TrainerControl()
    callback.on_init_end(settings, state, control, model=model)
    if folder := callback.resume():
        trainer: Any = SimpleNamespace(is_fsdp_enabled=False, model=model, _issue_warnings_after_load=lambda _: None)
        Trainer._load_from_checkpoint(trainer, folder)
        state = TrainerState.load_from_json(f"{folder}/trainer_state.json")
    wrapped = SimpleNamespace(optimizer=optimizer, scaler=scaler)
    callback.on_train_begin(settings, state, control, model=model, optimizer=wrapped, lr_scheduler=schedule)
    weights = {name: value.clone() for name, value in model.state_dict().items()}
    state.global_step += 1
    callback.on_train_end(settings, state, control)
    return weights


def test_the_scale_of_fp16s_losses_goes_on(worker: Any, tmp_path: Path) -> None:
    worker(EVERSTEP_STORE=str(tmp_path / "store"), EVERSTEP_JOB="j", RANK="0")
    scaler, later = torch.amp.GradScaler("cpu", init_scale=8.0), torch.amp.GradScaler("cpu")
    train_one_step(torch.nn.Linear(2, 2), scaler)
    worker()
    train_one_step(torch.nn.Linear(2, 2), later)
    assert later.state_dict() == scaler.state_dict()


@pytest.fixture
def peft(monkeypatch: pytest.MonkeyPatch) -> None:
    """The Trainer and the callback take models for those of PEFT, which is not installed."""
    from transformers import trainer

    from everstep import huggingface

    for module in (trainer, huggingface):
        monkeypatch.setattr(module, "_is_peft_model", lambda model: isinstance(model, Adapted))


@pytest.mark.usefixtures("peft")
def test_a_trainer_that_resumes_an_adapter_has_it_from_the_checkpoint(worker: Any, tmp_path: Path, same: Any) -> None:
    worker(EVERSTEP_STORE=str(tmp_path / "store"), EVERSTEP_JOB="j", RANK="0")
    began_with = train_one_step(Adapted(2, 2))
    worker()
    assert same(train_one_step(Adapted(2, 2)), began_with)


@pytest.mark.usefixtures("peft")
def test_an_adapter_with_fsdp_is_refused_before_it_trains(worker: Any) -> None:
    from transformers.trainer_callback import TrainerControl, TrainerState

    from everstep.huggingface import EverstepCallback

    worker()
    settings: Any = SimpleNamespace(fsdp=True, fsdp_config={"version": 2})
    with pytest.raises(StateError, match=r"^fsdp with a model of PEFT: .* leave fsdp out$"):
        EverstepCallback().on_init_end(settings, TrainerState(), TrainerControl(), model=Adapted(2, 2))
