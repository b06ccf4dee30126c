"""A worker's board: one small file in shared memory that says what the worker does. Written by it, read by anybody.

Fields are aligned words, so a reader may see two fields of different moments but never half a field. Standard library
only: the fork server imports it before it preloads.
"""

import mmap
import os
import signal
import struct
from contextlib import suppress
from pathlib import Path

from everstep.runtime.watch.board_fields import Board

VARIABLE = "EVERSTEP_BOARD"
"""Names the worker's board file."""
RECENT = 16
"""The newest iterations whose seconds a board keeps."""
THREAD = "everstep-watch"
"""The worker's thread that counts collectives."""
STACK_SIGNAL = signal.SIGRTMIN + 9
"""A worker answers it by a dump to `stack_file`; libraries use the first real-time signals."""
_MAGIC = b"EVSBRD04"
_HEAD = struct.Struct("=8s5q")
_PROGRESS_AT, _PROGRESS = 64, struct.Struct("=qd32s")
_COLLECTIVES_AT, _COLLECTIVES = 128, struct.Struct("=4qd80s")
_RECENT_AT, _RECENT = 256, struct.Struct(f"={RECENT}d")
_JOB_AT, _JOB_BYTES = 384, 128
_SPENT_AT, _SPENT = 512, struct.Struct("=4dq")
_STORE_AT, _STORE_BYTES = 576, 256
_ENDED_AT, _ENDED = 832, struct.Struct("=qd")
_FIRST_AT, _FIRST = 848, struct.Struct("=3d")
_NAMED_AT, _SIZE = 872, 904
_PHASE_BYTES, _NAME_BYTES = 32, 80


class BoardWriter:
    """The worker's side.

    `finish_iteration` and `add_data` are short: after an iteration that has gone through more memory than the caches
    hold, each line of Python costs microseconds, and a word written through a memoryview a third of a `pack_into`. So a
    reader adds up what it can: an iteration is a sign of progress, too.
    """

    def __init__(self, path: str, board: Board) -> None:
        """Create the file. Raises OSError."""
        file = os.open(path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
        try:
            os.ftruncate(file, _SIZE)
            self._memory = mmap.mmap(file, _SIZE)
        finally:
            os.close(file)
        self._memory[:_SIZE] = bytes(_SIZE)
        words = memoryview(self._memory)
        self._recent = words[_RECENT_AT : _RECENT_AT + _RECENT.size].cast("d")
        self._spent = words[_SPENT_AT : _SPENT_AT + _SPENT.size].cast("d")
        self._earlier = words[_SPENT_AT : _SPENT_AT + _SPENT.size].cast("q")
        self._iteration = words[_ENDED_AT : _ENDED_AT + _ENDED.size].cast("q")
        self._ended = words[_ENDED_AT : _ENDED_AT + _ENDED.size].cast("d")
        self._changes = self._samples = self._waits = 0
        self._phase = b""
        for text, at, size in ((board.job, _JOB_AT, _JOB_BYTES), (board.store, _STORE_AT, _STORE_BYTES)):
            data = text.encode()[:size]
            self._memory[at : at + len(data)] = data
        _HEAD.pack_into(self._memory, 0, _MAGIC, *board[:5])  # Last: a board with a head is whole.

    def set_phase(self, name: str, now: float) -> None:
        """Say what is done now."""
        self._phase = name.encode()[:_PHASE_BYTES]
        self.note_progress(now)

    def set_named(self, name: str) -> None:
        """Say what the script says that it does; "": nothing any more."""
        self._memory[_NAMED_AT:_SIZE] = name.encode()[:_PHASE_BYTES].ljust(_PHASE_BYTES, b"\0")

    def finish_iteration(self, seconds: float, now: float) -> None:
        """Count an iteration; `seconds`: how long it took, 0 if that is not known."""
        number = self._iteration[0] + 1
        self._recent[number % RECENT] = seconds
        self._ended[1] = now
        self._iteration[0] = number

    def note_progress(self, now: float) -> None:
        """Count a sign of progress other than an iteration."""
        self._changes += 1
        _PROGRESS.pack_into(self._memory, _PROGRESS_AT, self._changes, now, self._phase)

    def add_data(self, seconds: float) -> None:
        """Add seconds that the worker has waited for data."""
        self._spent[0] += seconds

    def add_spent(self, staging_s: float = 0.0, evaluation_s: float = 0.0) -> None:
        """Add seconds that the worker has waited for a save, or has evaluated."""
        self._spent[1] += staging_s
        self._spent[2] += evaluation_s

    def add_tokens(self, count: float) -> None:
        """Add tokens that all ranks have trained on."""
        self._spent[3] += count

    def begin_counting(self, earlier: int, now: float) -> None:
        """Say that the first iteration ends now, and how many iterations earlier processes made."""
        self._earlier[4] = earlier
        _FIRST.pack_into(self._memory, _FIRST_AT, now, self._spent[1], self._spent[2])

    def set_collectives(self, entered_count: int, completed_count: int, name: str, now: float) -> None:
        """Say which collective was entered last, and which finished."""
        self._samples += 1
        self._waits += completed_count < entered_count
        data = (entered_count, completed_count, self._samples, self._waits, now, name.encode()[:_NAME_BYTES])
        _COLLECTIVES.pack_into(self._memory, _COLLECTIVES_AT, *data)


def read_board(path: Path) -> Board | None:
    """The board in that file; None if there is none (yet)."""
    with suppress(OSError):
        data = _read(path)
        if len(data) == _SIZE and data.startswith(_MAGIC):
            pid, rank, world_size, local_rank, round_ = _HEAD.unpack_from(data)[1:]
            changes, changed_at, phase = _PROGRESS.unpack_from(data, _PROGRESS_AT)
            iteration, ended_at = _ENDED.unpack_from(data, _ENDED_AT)
            entered_count, completed_count, samples, waits, sampled_at, name = _COLLECTIVES.unpack_from(
                data, _COLLECTIVES_AT
            )
            recent = _RECENT.unpack_from(data, _RECENT_AT)
            data_s, staging_s, evaluation_s, tokens, earlier = _SPENT.unpack_from(data, _SPENT_AT)
            return Board(
                pid, rank, world_size, local_rank, round_, _text(data[_JOB_AT:_SPENT_AT]), iteration,
                changes + iteration, max(changed_at, ended_at), _text(phase), entered_count, completed_count, samples,
                waits, sampled_at, _text(name), recent, data_s, staging_s, evaluation_s, tokens, earlier, ended_at,
                _text(data[_STORE_AT:_ENDED_AT]), *_FIRST.unpack_from(data, _FIRST_AT),
                named=_text(data[_NAMED_AT:_SIZE]),
            )  # fmt: skip
    return None


def _read(path: Path) -> bytes:
    """What is in the file, as far as a board goes; of something else than a file nothing. Raises OSError.

    Another user may have put it there: a link is not followed, a pipe not waited for."""
    file = os.open(path, os.O_RDONLY | os.O_CLOEXEC | os.O_NOFOLLOW | os.O_NONBLOCK)
    try:
        return os.read(file, _SIZE + 1)
    finally:
        os.close(file)


def stack_file(board: Path) -> Path:
    """Where the worker with that board writes its stacks."""
    return board.with_name(f"{board.name}.stacks")


def _text(data: bytes) -> str:
    return data.rstrip(b"\0").decode(errors="replace")
