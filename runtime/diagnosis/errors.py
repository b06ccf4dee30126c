"""What ends a check early, by whose turn it is: the caller's input, the other nodes, or the network. One line each."""


class RefusedError(ValueError):
    """The coordinator does not take this node: a wrong token, a malformed message."""


class TakenNameError(RefusedError):
    """A node arrives under a name that takes part in a check already."""


class UnknownNodeError(LookupError):
    """The coordinator does not know this node (it is a new one): the node should arrive again."""


class NoQuorumError(RuntimeError):
    """Too few nodes came: there is no check."""


class CoordinatorLostError(ConnectionError):
    """The coordinator does not answer."""


class MeasurementError(RuntimeError):
    """The process that measures did not start."""
