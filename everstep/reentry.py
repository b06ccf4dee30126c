"""`@everstep.main`: a script's main function that is entered again in each round, in the same process.

    @everstep.main
    def main(job):
        model = job.keep(build_model)

When a round ends, a thread hears it from the agent, cuts the process groups' sockets, ends the waits that gloo forgets,
and interrupts the main thread, which leaves `main` by an exception. If no rank is lost, the main thread may end its
iteration first. Without an agent `main` is entered once.

Invariant: the worker says Left when no code of the round can write a slot or a kept tensor any more. So the main thread
is not interrupted while it copies states (`checkpoint/shard`), whose threads it must wait for, nor within an import or
where a DataLoader would stay half done (`data_loaders`).
"""

import ctypes
import gc
import os
import queue
import signal
import sys
import threading
import time
import traceback
from collections.abc import Callable, Iterator, MutableMapping
from contextlib import suppress
from datetime import timedelta
from functools import wraps
from types import FrameType
from typing import Any

import torch.distributed as dist

from everstep import data_loaders
from everstep.entry_state import EntryState
from everstep.exit_now import exit_now
from everstep.gloo_waits import GlooWaits
from everstep.group_sockets import GroupSockets, communicator_error
from everstep.kept_values import KeptValues
from everstep.left_behind import LeftBehind
from everstep.process_group import leave
from everstep.rehearsal import rehearse
from everstep.runtime.agent.script import exit_code_of
from everstep.runtime.checkpoint.shard import copy_to_slot
from everstep.runtime.exit_codes import ExitCode
from everstep.runtime.job.error_kinds import UNKNOWN, evidence_line, kind_of
from everstep.runtime.protocol.survivor_link import (
    SPARE_VARIABLE,
    Failed,
    LastIteration,
    Left,
    LostConnection,
    NextRound,
    RoundEnded,
    Seated,
    SurvivorLink,
)
from everstep.runtime.protocol.worker_link import LinkError
from everstep.runtime.watch import in_worker
from everstep.runtime.watch.board import STACK_SIGNAL
from everstep.session import Context, RoundOver, end_round, is_aborted, local_device, round_ends
from everstep.training import enter

Main = Callable[[Context], object]

_SIGNAL = STACK_SIGNAL + 1
"""Interrupts the main thread. Libraries use the first real-time signals."""
_KNOCK_EVERY_S = 0.02
_LOOK_EVERY_S = 0.25
_RAISE_AGAIN_S = 0.5
"""Time for `finally` blocks, before an interruption that somebody has swallowed is repeated."""
_GRACE_S = 0.5
"""Within this time after a connection to another rank has failed the agent mostly says that a rank was lost."""
_SILENCE_S = 45.0
"""So long the agent, once it was told of a failed connection, may take to end the round: its master may be away."""
_PEER_LOST_S = 5.0
"""Another error that may follow from the end of a rank is this worker's own if the round does not end so soon."""
_TRIM_EVERY = 10
"""Rounds. Returning free memory costs some milliseconds, and what the next round uses of it costs as much again."""
_RETHROWS = "TORCH_NCCL_RETHROW_CUDA_ERRORS"
"""0, unless the user says otherwise: torch's watchdog does not end the process for CUDA's errors, which follow when a
communicator is aborted (ProcessGroupNCCL.cpp, `run` of Watchdog)."""
_ON_ERRORS = "TORCH_NCCL_ASYNC_ERROR_HANDLING"
"""0: the watchdog neither aborts a communicator by itself, before saves know, nor ends the process: the agent's word
does the one, and nothing the other (torch, `_abort_process_group`)."""
_FINISH_FIRST = (os.path.dirname(copy_to_slot.__file__), "<frozen importlib")


def main(
    function: Main | None = None, *, seed: int = 0, timeout: timedelta = timedelta(minutes=10)
) -> Callable[..., Any]:
    """Decorate `main(job)`. Call the result without arguments; every round enters it again in the same process.

    It replaces `everstep.init` and takes the same `seed` and `timeout`. A collective of NCCL that exceeds `timeout`
    ends the round. Call it in the main thread. The call raises what `init` and `main` raise.
    """
    if function is None:
        return lambda function: _decorate(function, seed, timeout)
    return _decorate(function, seed, timeout)


def _decorate(function: Main, seed: int, timeout: timedelta) -> Callable[[], None]:
    @wraps(function)
    def run() -> None:
        link = SurvivorLink.from_environment()
        if link is None:
            function(enter(seed, timeout))
            return
        rounds = _Rounds(link)
        if SPARE_VARIABLE in os.environ:
            rounds.rehearse(function, seed)
            rounds.take_seat()
        while not rounds.run(lambda: function(enter(seed, timeout, rounds.kept, rounds.sockets))):
            rounds.leave()
            rounds.take_seat()
        rounds.end()

    return run


def calm_watchdog(environment: MutableMapping[str, str]) -> None:
    """Have torch's watchdog of NCCL leave a survivor alone. Call it before the first group is made."""
    environment.setdefault(_RETHROWS, "0")
    environment[_ON_ERRORS] = "0"


class _Rounds:
    """The rounds of this process."""

    def __init__(self, link: SurvivorLink) -> None:
        calm_watchdog(os.environ)
        self.kept, self.sockets, self._entry_state = KeptValues(), GroupSockets(), EntryState()
        self._left_behind = LeftBehind()
        self._link = link
        self._round = int(os.environ["EVERSTEP_ROUND"])
        self._inside = False
        """Is the main thread in the script's function?"""
        self._has_objects = False
        """Are objects that the script's function has made still there, whose end may wait for something?"""
        self._raised_at = -_RAISE_AGAIN_S
        self._over, self._cut, self._left = threading.Event(), threading.Event(), threading.Event()
        """Of the present round: the agent has said that it is over; its sockets are cut; nothing of it is left."""
        self._seats: queue.SimpleQueue[tuple[NextRound, list[int]] | None] = queue.SimpleQueue()
        self._excepthook = sys.excepthook
        self.sockets.watch_new_groups()
        gc.freeze()  # Collections between two rounds then visit only what the rounds have made.
        self._releases = 0
        """How many rounds and rehearsals it has left."""
        signal.signal(_SIGNAL, self._interrupt)
        threading.Thread(target=self._listen, name="everstep-rounds", daemon=True).start()
        if local_device(0).type != "cpu":
            threading.Thread(target=self._watch_communicators, name="everstep-watch", daemon=True).start()

    def run(self, function: Callable[[], object]) -> bool:
        """Returns whether the function has returned in time; if not, the round is over. Raises the function's own
        errors."""
        self._inside = self._has_objects = True
        try:
            function()
        except BaseException as error:
            self._inside = False
            if not self._is_round_over(error):
                if code := exit_code_of(error):
                    with suppress(OSError):
                        self._link.send(Failed(self._round, code))
                else:
                    self.end()
                raise
            if isinstance(error, RoundOver):
                _tell_of_interrupted(error)
            data_loaders.drop_half_reset(_chain(error))
            _release_frames(error)
            return False
        finally:
            self._inside = False
        return not self._over.is_set()

    def rehearse(self, function: Main, seed: int) -> None:
        """Become a warm spare, and say so."""
        rehearsed = rehearse(function, seed, self.kept)
        del os.environ[SPARE_VARIABLE]
        end_round()
        self._release_round()
        self._link.send(rehearsed)

    def leave(self) -> None:
        """Release what belongs to the round, and say that it is left.

        In this order: releasing a group joins torch's threads, and one may be stuck in a collective that the script
        began and did not wait for. The agent ends a worker that does not say Left."""
        if self._over.is_set():
            self._cut.wait()  # The release of a group may wait for what only the cut ends.
        end_round()
        self._release_round()
        self.sockets.forget()
        self._left.set()
        self._link.send(Left(self._round))

    def _release_round(self) -> None:
        """Release what the round has made, its groups last."""
        _reset_accelerate()
        self.kept.end_round()
        gc.collect()
        self._has_objects = False
        with self.sockets.releasing:
            leave()
        sys.excepthook = self._excepthook  # torch puts its own around it whenever it joins a group, to name the rank.
        self._releases += 1
        if self._releases == 1:
            gc.freeze()  # What is compiled and kept by now is visited no more: it may be a million objects.
        if self._releases % _TRIM_EVERY == 0:
            _return_free_memory()

    def end(self) -> None:
        """The function is done, and not entered again: the process ends with its round, as others do."""
        self.sockets.abort_no_more()
        self._left.set()
        self._link.close()

    def take_seat(self) -> None:
        """Wait for the next round; take on its environment and its output. Raises LinkError: the agent is gone."""
        self._left_behind.look()
        next_seat = self._seats.get()
        if next_seat is None:
            raise LinkError("the agent of this node is gone")
        seat, files = next_seat
        sys.stdout.flush()
        sys.stderr.flush()
        for stream, file in enumerate(files, start=1):
            os.dup2(file, stream)
            os.close(file)
        os.environ.update(seat.environment)
        os.environ[_ON_ERRORS] = "0"
        in_worker.begin_round(os.environ)
        self._entry_state.put_back()
        self.kept.begin_round(seat.restores)
        self._link.send(Seated(seat.round))

    def _is_round_over(self, error: BaseException) -> bool:
        if self._over.is_set() or isinstance(error, RoundOver):
            return True
        may_follow = _may_follow(error)
        if lost := _lost_connection(error) or (may_follow and communicator_error()):
            return self._ends_without(lost, self._round, error)
        return may_follow and round_ends.wait(_PEER_LOST_S)

    def _ends_without(self, connection: str, round_: int, error: BaseException | None = None) -> bool:
        """Whether the round ends, as a connection has failed with this error: by itself, or as the agent is told."""
        if round_ends.wait(_GRACE_S):
            return True
        if error is not None:
            traceback.print_exception(error)  # Nobody else does: the process stays.
        try:
            self._link.send(LostConnection(round_, connection))
        except OSError:
            return round_ends.is_set()
        return round_ends.wait(_SILENCE_S)

    def _listen(self) -> None:
        """In a thread."""
        while received_message := self._link.receive():
            message, files = received_message
            match message:
                case LastIteration():
                    round_ends.set()
                case RoundEnded():
                    self._over.set()  # First: who waits for the other then waits for the cut, too.
                    round_ends.set()
                    is_aborted.set()
                    self.sockets.cut()
                    self._cut.set()
                    waits = GlooWaits()
                    while not self._left.is_set():
                        # First: a main thread that is called back then raises before it uses an unfinished result.
                        if self._has_objects:
                            signal.pthread_kill(threading.main_thread().ident or 0, _SIGNAL)
                        if self.sockets.cut_is_seen():
                            waits.end_forgotten()
                        self._left.wait(_KNOCK_EVERY_S)
                case NextRound(round_):
                    for event in (round_ends, is_aborted, self._over, self._cut, self._left):
                        event.clear()
                    self._round = round_
                    self._seats.put((message, files))
        self._seats.put(None)

    def _watch_communicators(self) -> None:
        """In a thread. If a communicator has an error and nobody ends the round, the process ends: nothing else would
        end its collective (`_ON_ERRORS`)."""
        while True:
            time.sleep(_LOOK_EVERY_S)
            round_ = self._round
            if not self._inside or not (error := communicator_error()) or self._ends_without(error, round_):
                continue
            if self._inside and self._round == round_:
                print(f"everstep: {error}: this worker ends, as its collectives will not", file=sys.stderr)
                exit_now(ExitCode.FAILED)

    def _interrupt(self, _: int, frame: FrameType | None) -> None:
        """Leave the script's function, unless something has to be finished first: then at a later signal."""
        now = time.monotonic()
        if not self._over.is_set() or data_loaders.hurry(frame):
            return
        if not self._inside or now < self._raised_at + _RAISE_AGAIN_S:
            return
        if frame is None or frame.f_code.co_filename == __file__ or _has_to_finish(frame):
            return
        self._raised_at = now
        raise RoundOver(f"round {self._round} is over")


def _return_free_memory() -> None:
    """Return free memory to the kernel. glibc's heap keeps what lies below a block in use, and grows, as each round
    leaves it in smaller pieces. Does nothing with another C library."""
    with suppress(AttributeError):
        ctypes.CDLL(None).malloc_trim(0)


def _reset_accelerate() -> None:
    """Hugging Face's accelerate keeps rank and world size for as long as the process lives (accelerate.state)."""
    if (state := sys.modules.get("accelerate.state")) is not None:
        for name in ("AcceleratorState", "GradientState", "PartialState"):
            getattr(state, name)._reset_state()


def _has_to_finish(frame: FrameType | None) -> bool:
    """Whether something in these frames would stay half done."""
    if data_loaders.has_to_finish(frame):
        return True
    while frame is not None:
        if frame.f_code.co_filename.startswith(_FINISH_FIRST):
            return True
        frame = frame.f_back
    return False


def _lost_connection(error: BaseException) -> str:
    """The line which says that a collective's connection to another rank has failed; empty: none did."""
    for each in _chain(error):
        text = _as_text(each)
        if _is_collectives(each) and kind_of(text, ExitCode.FAILED).is_network:
            return evidence_line(text)
    return ""


def _may_follow(error: BaseException) -> bool:
    """Whether the error may come from the end of another rank or of the round: of a collective if it is of no known
    kind, or of another connection."""
    kinds = [kind_of(_as_text(each), ExitCode.FAILED) for each in _chain(error) if _is_collectives(each)]
    if kinds:
        return all(kind is UNKNOWN for kind in kinds)
    return any(
        isinstance(each, ConnectionError) or (isinstance(each, RuntimeError) and "Connection" in str(each))
        for each in _chain(error)
    )


def _tell_of_interrupted(round_over: RoundOver) -> None:
    """Say which error of the script's own was under way: it may be why the round is over, as where `main` ends its
    groups and then does other things before it lets the error out."""
    usual = RoundOver | StopIteration | GeneratorExit | ConnectionError
    for each in _chain(round_over):
        if not isinstance(each, usual) and not _is_collectives(each):
            places = traceback.extract_tb(each.__traceback__)[-1:]
            where = "".join(f" ({os.path.basename(place.filename)}:{place.lineno})" for place in places)
            print(f"everstep: the end of the round has interrupted this: {_as_text(each)}{where}", file=sys.stderr)
            return


def _chain(error: BaseException | None) -> Iterator[BaseException]:
    """The error, and those from which it follows."""
    errors_visited = set[int]()
    while error is not None and id(error) not in errors_visited:
        yield error
        errors_visited.add(id(error))
        error = error.__cause__ or error.__context__


def _is_collectives(error: BaseException) -> bool:
    """Whether it looks as if torch's collectives or its store had raised it."""
    is_named = isinstance(error, RuntimeError) and any(word in str(error) for word in ("gloo", "NCCL"))
    return is_named or isinstance(error, dist.DistError)


def _as_text(error: BaseException) -> str:
    """As Python prints its last lines."""
    return f"{type(error).__name__}: {error}"


def _release_frames(error: BaseException | None) -> None:
    """Let go of the round's variables, which the tracebacks hold."""
    while error is not None:
        traceback.clear_frames(error.__traceback__)
        error.__traceback__, error = None, error.__cause__ or error.__context__
