"""A few iterations of a worker as torch's profiler sees them, on request: operators, and kernels of a GPU.

Who asks writes a file beside the worker's board; the worker answers with a Chrome trace, and says why if it cannot.
"""

import os
import sys
from pathlib import Path
from typing import Any

ITERATIONS = 3
"""How many a trace has: short enough to be opened, long enough to show what comes back."""
LOOK_S = 1.0


def request_file(board: Path) -> Path:
    """It exists as long as a trace is wanted."""
    return board.with_name(f"{board.name}.profile")


def trace_file(board: Path) -> Path:
    """The answer: a Chrome trace, or one line of text."""
    return board.with_name(f"{board.name}.trace")


class KernelProfile:
    """The worker's side."""

    def __init__(self, board: Path) -> None:
        self._request, self._trace = str(request_file(board)), trace_file(board)
        self._profiler: Any = None
        self._left = 0
        self.due_at = 0.0
        """When `after_step` wants to be called. Not after each step: looking for a request takes some microseconds."""

    def after_step(self, now: float) -> None:
        """Begin, go on with, or end what was asked for. Never fails: the script goes on.

        `now`: seconds since any moment.
        """
        try:
            if self._profiler is None:
                self.due_at = now + LOOK_S
                if os.path.exists(self._request):
                    self._begin()
                return
            self._left -= 1
            if self._left == 0:
                self._end()
        except (RuntimeError, OSError, AssertionError) as error:  # Such as: the script profiles itself.
            self._profiler = None
            self._answer(f"torch's profiler: {error}")

    def _begin(self) -> None:
        torch: Any = sys.modules["torch"]
        kinds = torch.profiler.ProfilerActivity
        activities = [kinds.CPU, kinds.CUDA] if torch.cuda.is_available() else [kinds.CPU]
        profiler = torch.profiler.profile(activities=activities)
        profiler.start()
        self._profiler, self._left, self.due_at = profiler, ITERATIONS, 0.0

    def _end(self) -> None:
        profiler, self._profiler = self._profiler, None
        profiler.stop()
        fresh = self._trace.with_suffix(".fresh")
        profiler.export_chrome_trace(str(fresh))
        os.unlink(self._request)
        fresh.replace(self._trace)

    def _answer(self, text: str) -> None:
        try:
            os.unlink(self._request)
            self._trace.write_text(text)
        except OSError:
            pass  # The node's folder is gone, and so is whoever asked.
