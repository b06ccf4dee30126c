"""`everstep checkpoint`: what a store keeps, read whole, and out of it for other tools."""

import json
import os
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors import SafetensorError
from safetensors.torch import load_file

from everstep.cli.main import main
from everstep.runtime.checkpoint.state.flatten import flatten
from everstep.runtime.checkpoint.worker.standalone import Collectives, StandaloneKeeper
from everstep.runtime.store import open_store


@pytest.fixture
def job(tmp_path: Path) -> Path:
    """A job with two committed checkpoints and one that never was."""
    store = open_store(str(tmp_path / "store"))
    torch.manual_seed(0)
    first, second = torch.nn.Linear(300, 400), torch.nn.Linear(400, 300)
    second.weight = torch.nn.Parameter(first.weight.detach().T.clone())
    model = torch.nn.Sequential(first, second)
    for iteration in (3, 5):
        alone = StandaloneKeeper(store, "j")
        alone.save(iteration, flatten({"model": model, "iteration": iteration}), persist=True)
        alone.flush(iteration)
    store.put("jobs/j/checkpoints/000009-000000007/rank-00001.safetensors", b"half of it")
    return tmp_path / "store/jobs/j"


def run_command(capsys: pytest.CaptureFixture[str], *words: str, code: int = 0) -> tuple[str, str]:
    assert main(["checkpoint", *words]) == code
    return capsys.readouterr()


def test_ls_tells_what_is_there_and_whether_it_is_committed(job: Path, capsys: Any) -> None:
    for place in (job, job.parents[1]):
        lines = run_command(capsys, "ls", str(place))[0].splitlines()
        assert [line.split()[1:4] + line.split()[5:] for line in lines[1:]] == [
            ["1", "3", "1", "yes"], ["2", "5", "1", "yes"], ["9", "7", "1", "no"],
        ]  # fmt: skip
    output = json.loads(run_command(capsys, "ls", str(job), "-o", "json")[0])
    assert output[1]["checkpoint"] == "jobs/j/checkpoints/000002-000000005"
    assert output[1]["bytes"] > 4 * 300 * 400


def test_verify_reads_every_byte_and_names_what_is_damaged(job: Path, capsys: Any) -> None:
    assert (
        run_command(capsys, "verify", str(job))[0]
        .splitlines()[1]
        .startswith("jobs/j/checkpoints/000002-000000005: whole, 1 shards, ")
    )
    shard = job / "checkpoints/000002-000000005/rank-00000.safetensors"
    whole = shard.read_bytes()
    for place in (20, 5000, len(whole) - 1):
        shard.write_bytes(whole[:place] + bytes([whole[place] ^ 1]) + whole[place + 1 :])
        text = run_command(capsys, "verify", str(shard.parent), code=1)[0]
        assert "000002-000000005: DAMAGED" in text
        assert "rank-00000.safetensors: " in text
    shard.write_bytes(whole[:-1])
    assert "DAMAGED" in run_command(capsys, "verify", str(job), code=1)[0]
    shard.unlink()
    assert "rank-00000.safetensors is gone" in run_command(capsys, "verify", str(shard.parent), code=1)[0]


def test_export_writes_the_newest_committed_model_as_one_file(job: Path, tmp_path: Path, capsys: Any) -> None:
    target = tmp_path / "out/model.safetensors"
    assert "iteration 5" in run_command(capsys, "export", str(job), str(target))[1]
    tensors = load_file(target)
    assert sorted(tensors) == ["0.bias", "0.weight", "1.bias", "1.weight"]
    assert torch.equal(tensors["0.weight"], tensors["1.weight"].T)
    assert "something exists there already" in run_command(capsys, "export", str(job), str(target), code=2)[1]
    assert [path.name for path in target.parent.iterdir()] == ["model.safetensors"]


def test_a_copied_checkpoint_can_be_read_too(job: Path, tmp_path: Path, capsys: Any) -> None:
    copied = tmp_path / "000002-000000005"
    (job / "checkpoints/000002-000000005").rename(copied)
    assert "000002-000000005: whole" in run_command(capsys, "verify", str(copied))[0]


@pytest.mark.parametrize("words", [("ls", "no/such"), ("verify", "no/such"), ("export", "no/such", "x")])
def test_what_is_not_there_is_one_line_and_exit_code_2(words: tuple[str, ...], capsys: Any) -> None:
    error = run_command(capsys, *words, code=2)[1]
    assert error.startswith(f"everstep checkpoint {words[0]}: no/such: no checkpoint there")
    assert error.count("\n") == 1


@pytest.mark.parametrize("words", [("ls", "."), ("ls", "my dir"), ("verify", ".."), ("drop", "no+such")])
def test_a_name_that_no_key_can_have_is_one_line_and_exit_code_2(
    words: tuple[str, ...], tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: Any
) -> None:
    monkeypatch.chdir(tmp_path)
    error = run_command(capsys, *words, code=2)[1]
    assert error.startswith(f"everstep checkpoint {words[0]}: {words[1]}: no checkpoint there")
    assert error.count("\n") == 1


def test_a_job_that_no_key_can_name_has_no_garbage(job: Path, capsys: Any) -> None:
    error = run_command(capsys, "gc", f"{job.parents[1]}/jobs/a b", code=2)[1]
    assert error == "everstep checkpoint gc: not a key: 'jobs/a b'; parts of letters, digits and ._- joined by /\n"


@pytest.mark.parametrize("target", ["file/model.safetensors", "file/directory"])
def test_a_target_that_cannot_be_is_one_line_and_exit_code_2(
    target: str, job: Path, tmp_path: Path, capsys: Any
) -> None:
    (tmp_path / "file").touch()
    error = run_command(capsys, "export", str(job), str(tmp_path / target), code=2)[1]
    assert error.startswith(f"everstep checkpoint export: {tmp_path / target}: ")
    assert error.count("\n") == 1


def test_an_export_that_finds_no_room_leaves_nothing(
    job: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: Any
) -> None:
    def write_half(_: Any, path: Path, *__: Any) -> None:
        path.write_bytes(b"half")
        raise SafetensorError("Error while serializing: I/O error: No space left on device (os error 28)")

    monkeypatch.setattr("safetensors.torch.save_file", write_half)
    target = tmp_path / "out/model.safetensors"
    error = run_command(capsys, "export", str(job), str(target), code=2)[1]
    assert "model.safetensors: cannot be written: Error while serializing: I/O error: No space left" in error
    assert error.count("\n") == 1
    assert not list(target.parent.iterdir())


def test_a_state_that_is_no_llama_is_refused_as_a_directory(job: Path, tmp_path: Path, capsys: Any) -> None:
    error = run_command(capsys, "export", str(job), str(tmp_path / "directory"), code=2)[1]
    assert "TARGET.safetensors" in error
    assert error.count("\n") == 1
    assert not (tmp_path / "directory").exists()


def test_verify_goes_on_behind_a_manifest_that_is_broken(job: Path, capsys: Any) -> None:
    manifest = job / "checkpoints/000001-000000003/manifest.json"
    manifest.write_text(manifest.read_text().replace('"version": 1', '"version": 7'))
    lines = run_command(capsys, "verify", str(job), code=1)[0].splitlines()
    assert lines[0].startswith("jobs/j/checkpoints/000001-000000003: DAMAGED")
    assert "version 7, this Everstep reads up to 1" in lines[1]
    assert lines[2].startswith("jobs/j/checkpoints/000002-000000005: whole")
    assert "DAMAGED" in run_command(capsys, "ls", str(job))[0]


def test_export_of_ranks_own_states_says_what_reads_them(tmp_path: Path, capsys: Any) -> None:
    store = open_store(str(tmp_path / "store"))
    claims: list[tuple[int, int]] = []

    def agree(claim: Callable[[], tuple[int, int]], _: torch.device) -> tuple[int, int]:
        claims.extend([] if claims else [claim()])
        return claims[0]

    ranks = [StandaloneKeeper(store, "j", collectives=Collectives(agree, lambda mine, _: mine)) for _ in range(2)]
    for rank, alone in enumerate(ranks):
        alone.join(rank, 2)
    for rank, alone in enumerate(ranks):
        alone.save(3, flatten({"saved": {f"rank{rank}": torch.ones(3)}}), persist=True)
    for alone in ranks:
        alone.flush(3)
    target = tmp_path / "model.safetensors"
    error = run_command(capsys, "export", str(tmp_path / "store/jobs/j"), str(target), code=2)[1]
    assert "load it by everstep.megatron or everstep.deepspeed" in error
    assert "skipped" not in error
    assert not target.exists()


def test_export_passes_over_a_damaged_newest_one_and_says_so(job: Path, tmp_path: Path, capsys: Any) -> None:
    shard = job / "checkpoints/000002-000000005/rank-00000.safetensors"
    whole = shard.read_bytes()
    shard.write_bytes(whole[:-1] + bytes([whole[-1] ^ 1]))
    error_text = run_command(capsys, "export", str(job), str(tmp_path / "model.safetensors"))[1]
    assert "000002-000000005 is skipped: store jobs/j" in error_text
    assert "iteration 3 of" in error_text
    assert "damaged" in run_command(capsys, "export", str(shard.parent), str(tmp_path / "other.safetensors"), code=1)[1]


def test_drop_removes_just_the_named_ones(job: Path, capsys: Any) -> None:
    place = job / "checkpoints"
    (place / "000002-000000005/manifest.json").write_bytes(b"broken")
    assert (
        "not name a single checkpoint"
        in run_command(capsys, "drop", str(place / "000002-000000005"), str(job), code=2)[1]
    )
    assert "000002-000000005: dropped, 2 objects" in run_command(capsys, "drop", str(place / "000002-000000005"))[0]
    assert sorted(path.name for path in place.iterdir()) == ["000001-000000003", "000009-000000007"]


def test_gc_removes_what_killed_writers_left_and_old_debris_and_first_tells_it(job: Path, capsys: Any) -> None:
    store = job.parents[1]
    temporary = job / "checkpoints/000001-000000004/~99999-0123456789ab"
    temporary.parent.mkdir()
    temporary.write_bytes(b"half")
    os.utime(temporary.parent, (1e9, 1e9))  # Nobody is about to write there.
    debris = job / "checkpoints/000001-000000002/rank-00000.safetensors"
    debris.parent.mkdir()
    debris.write_bytes(b"whole, never committed")
    os.utime(debris, (1e9, 1e9))
    for words, there in ((("--dry-run",), True), ((), False)):
        out, error_output = run_command(capsys, "gc", str(store), *words)
        assert (
            f"{temporary.relative_to(store)}: {'would be ' if there else ''}removed, 4 bytes of a killed writer" in out
        )
        assert f"{debris.relative_to(store)}: {'would be ' if there else ''}removed, 22 bytes" in out
        assert temporary.exists() is temporary.parent.exists() is debris.exists() is there
    assert "removed" in error_output
    assert run_command(capsys, "gc", str(job))[0] == ""
    assert "nothing of Everstep" in run_command(capsys, "gc", str(job / "nowhere"), code=2)[1]
    assert run_command(capsys, "verify", str(job))[0].count("whole") == 2
