"""What goes wrong with a checkpoint, each one line with its mend."""


class StateError(TypeError):
    """The state holds something that no checkpoint can; names its key path."""


class RestoreError(RuntimeError):
    """The checkpoint cannot be loaded into this state; nothing was loaded, unless the text says that it was torn."""


class SegmentError(OSError):
    """Shared memory cannot be had, or is not what it should be."""


class KeeperError(RuntimeError):
    """The keeper cannot do what was asked; the agent answers with a Problem of this text."""
