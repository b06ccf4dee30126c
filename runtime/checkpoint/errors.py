"""Errors of checkpoints. Each text is one line and says how to fix it."""

from collections.abc import Iterable

from everstep.runtime.protocol.holdings import Flaw, Refusal


class StateError(TypeError):
    """The state holds a value that cannot be checkpointed. The text gives its key path."""


class RestoreError(RuntimeError):
    """The checkpoint cannot be loaded into this state. Nothing was loaded unless the text says that the checkpoint was
    torn.

    This class itself means that the state is of another model. Its subclasses blame the checkpoint.
    """

    flaw: Flaw | None = None


class ApartError(RestoreError):
    """Each rank saved a state of its own; only the framework that saved them puts them together."""


class DamagedError(RestoreError):
    """The checkpoint is proven incomplete: bytes differ from their digests, or objects are missing or invalid."""

    flaw = Flaw.DAMAGED


class NewerError(RestoreError):
    """A later version of Everstep wrote the checkpoint."""

    flaw = Flaw.NEWER


class UnreachableError(RestoreError):
    """The holder does not answer now. The checkpoint may still be whole."""

    flaw = Flaw.UNREACHABLE


class PassedOverError(RestoreError):
    """No source supplies the checkpoint that the round was to start from. An older one takes its place; no worker is at
    fault."""

    def __init__(self, text: str, refusals: Iterable[Refusal]) -> None:
        super().__init__(text)
        self.refusals = tuple(refusals)
        # One source that may be whole is enough: an unreachable checkpoint must not lead to a start from zero.
        self.flaw = next((refusal.flaw for refusal in self.refusals if refusal.flaw is not Flaw.DAMAGED), Flaw.DAMAGED)


class AbortedError(RuntimeError):
    """Collectives were aborted before the state was copied. The device has gone on without their results, so the state
    may be wrong: it is not kept."""


class SegmentError(OSError):
    """Shared memory is not available, or its content is not a valid segment."""


class KeeperError(RuntimeError):
    """The keeper cannot do what was requested. The agent answers with a Problem of this text."""
