"""A warm spare rehearses one iteration, with nobody and without a trace."""

from pathlib import Path
from types import SimpleNamespace
from typing import Any, Generic, TypeVar

import pytest
import torch

from everstep import rehearsal
from tests.forks import Forks

T = TypeVar("T")

SCRIPT = Path(__file__).with_name("rehearsing_script.py")


@pytest.mark.parametrize(("kind", "iterations"), [("ddp", 1), ("fsdp", 1), ("silent", 2)])
def test_a_rehearsal_ends_after_an_iteration_and_leaves_nothing(
    kind: str, iterations: int, tmp_path: Path, forks: Forks
) -> None:
    out = tmp_path / "out"
    number = forks.start([str(SCRIPT), kind, str(out)], {}, tmp_path / "err")
    assert forks.wait(number) == 0, (tmp_path / "err").read_text()
    assert out.read_text() == repr(("", iterations, False, kind == "ddp"))


@pytest.mark.parametrize(("device", "expected"), [("cpu", None), ("cuda:1", [torch.device("cuda:1")])])
def test_what_ddp_waits_for_is_made_for_tensors_of_their_device(
    device: str, expected: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    made = list[Any]()

    class Future(Generic[T]):
        def __init__(self, *, devices: Any = None) -> None:
            made.append(devices)

        def set_result(self, result: Any) -> None:
            made.append(result)

    buffer: Any = SimpleNamespace(device=torch.device(device))
    monkeypatch.setattr(rehearsal.torch.futures, "Future", Future)
    bucket: Any = SimpleNamespace(buffer=lambda: buffer)
    rehearsal._reduce_nothing(None, bucket)
    assert made == [expected, buffer]
