"""Errors that end a check early: of the caller's input, of other nodes, or of the network. One line each."""


class RefusedError(ValueError):
    """The coordinator does not accept this node: wrong token, or malformed message."""


class TakenNameError(RefusedError):
    """A node with this name takes part in a check already."""


class UnknownNodeError(LookupError):
    """The coordinator does not know this node, as it is a new coordinator: the node should arrive again."""


class NoQuorumError(RuntimeError):
    """Too few nodes arrived, so there is no check."""


class CoordinatorLostError(ConnectionError):
    """The coordinator does not answer."""


class MeasurementError(RuntimeError):
    """The process that measures did not start."""
