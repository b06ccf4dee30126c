"""Files that `torch.load(path, weights_only=True)` reads, written beside the training."""

import atexit
import copy
import sys
from concurrent.futures import Future, ThreadPoolExecutor
from pathlib import Path
from typing import Any

import torch

from everstep.runtime.system.atomic import replacing


class FileWriter:
    """Writes one file at a time in a thread. The process ends only when the last one is written, or says that it
    could not be."""

    def __init__(self) -> None:
        self._threads = ThreadPoolExecutor(1, thread_name_prefix="everstep-file")
        self._last: Future[None] | None = None
        self._path = Path()
        """Where the last one goes."""
        atexit.register(self._end)

    def write(self, path: Path, state: dict[str, Any]) -> None:
        """Begin to write a copy of `state`, with its tensors on the CPU. Waits for the file before it.

        The file is complete or absent. Raises OSError if the one before it could not be written.
        """
        self.wait()
        self._path = path
        self._last = self._threads.submit(_write, path, copy_to_cpu(state))

    def wait(self) -> None:
        """Wait for the last file. Raises OSError if it could not be written."""
        last, self._last = self._last, None
        if last is not None:
            last.result()

    def _end(self) -> None:
        try:
            self.wait()
        except OSError as error:
            print(f"everstep: {self._path} could not be written: {error}", file=sys.stderr)


def _write(path: Path, state: dict[str, Any]) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    with replacing(path, durable=True) as file:
        torch.save(state, file)


def copy_to_cpu(value: Any) -> Any:
    """A copy that training does not change any more: containers as they are, tensors on the CPU."""
    if isinstance(value, torch.Tensor):
        return value.detach().to("cpu", copy=True)
    if isinstance(value, dict):
        return {key: copy_to_cpu(inner) for key, inner in value.items()}
    if isinstance(value, list | tuple):
        items = [copy_to_cpu(inner) for inner in value]
        return items if isinstance(value, list) else tuple(items)
    return copy.deepcopy(value)
