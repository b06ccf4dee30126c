"""What goes wrong with a checkpoint, each one line with its mend."""

from collections.abc import Iterable

from everstep.runtime.protocol.messages import Flaw, Refusal


class StateError(TypeError):
    """The state holds something that no checkpoint can; names its key path."""


class RestoreError(RuntimeError):
    """The checkpoint cannot be loaded into this state; nothing was loaded, unless the text says that it was torn.

    Of this class itself: the state is another one. Of a class below: it is the checkpoint that is to blame.
    """

    flaw: Flaw | None = None


class DamagedError(RestoreError):
    """It is proven not to be whole: bytes are not what they were, objects are gone or say what cannot be."""

    flaw = Flaw.DAMAGED


class NewerError(RestoreError):
    """A later Everstep wrote it."""

    flaw = Flaw.NEWER


class UnreachableError(RestoreError):
    """Whoever has it does not give it now; it may be whole."""

    flaw = Flaw.UNREACHABLE


class PassedOverError(RestoreError):
    """No source gives what a round was to begin from: an older checkpoint takes its place. Nobody's fault."""

    def __init__(self, text: str, refusals: Iterable[Refusal]) -> None:
        super().__init__(text)
        self.refusals = tuple(refusals)
        # One source that may be whole is enough: nobody may begin from nothing because it does not answer now.
        self.flaw = next((one.flaw for one in self.refusals if one.flaw is not Flaw.DAMAGED), Flaw.DAMAGED)


class SegmentError(OSError):
    """Shared memory cannot be had, or is not what it should be."""


class KeeperError(RuntimeError):
    """The keeper cannot do what was asked; the agent answers with a Problem of this text."""
