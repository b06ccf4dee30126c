"""The messages between a node's agent and a worker that outlives rounds: one JSON message per packet.

The worker connects once, when its script asks to survive, and stays connected from round to round. The socket is
`rounds` in the node's private folder, beside the one of `worker_link`. `SurvivorLink` is the worker's side.

A warm spare is such a worker without a seat: it is of round 0, says Rehearsed, and waits for its first NextRound.
"""

import os
import socket
from collections.abc import Mapping
from contextlib import suppress

import msgspec

from everstep.runtime.protocol.worker_link import AGENT_VARIABLE

SOCKET_NAME = "rounds"
SPARE_VARIABLE = "EVERSTEP_SPARE"
"""Set in the environment of a spare."""
LARGEST_PACKET = 1 << 18
LEAVE_S = 2.0
"""How long a worker may take to leave a round that is over. After that the agent kills it."""


class Survive(msgspec.Struct, frozen=True, tag=True):
    """The worker's first message: when this round is over, do not kill me, but tell me."""

    pid: int
    round: int


class Rehearsed(msgspec.Struct, frozen=True, tag=True):
    """From a spare: it is as warm as it gets, and waits for NextRound."""

    seconds: float
    """Since its script was entered."""
    problem: str = ""
    """Why the rehearsal ended before an iteration was done; empty: it was done."""
    state_bytes: int = 0
    """How large a slot for the script's state is; 0: not known, or each rank has its own part."""


class LastIteration(msgspec.Struct, frozen=True, tag=True):
    """From the agent: leave the round when this iteration is done. Answer: Left. If none comes in time,
    RoundEnded follows."""

    round: int


class RoundEnded(msgspec.Struct, frozen=True, tag=True):
    """From the agent: leave the iteration. Answer: Left."""

    round: int


class Left(msgspec.Struct, frozen=True, tag=True):
    """The worker writes no slot of this round any more, and has released its groups; it waits for NextRound."""

    round: int


class LostConnection(msgspec.Struct, frozen=True, tag=True):
    """The worker has lost its connection to another rank, and was not told why: it waits for RoundEnded."""

    round: int
    error: str
    """In one line."""


class Failed(msgspec.Struct, frozen=True, tag=True):
    """The script's function has raised an error of its own: the process ends, and what it runs at its end may take
    long."""

    round: int
    exit_code: int


class NextRound(msgspec.Struct, frozen=True, tag=True):
    """From the agent: the worker's seat in another round. Comes with the descriptors of its new stdout and stderr.
    Answer: Seated."""

    round: int
    environment: Mapping[str, str]
    """The variables that a new worker would get."""
    restores: bool
    """There is a state to restore. If not, whatever the worker kept is of no use."""


class Seated(msgspec.Struct, frozen=True, tag=True):
    """The worker has taken its seat and writes to its new stdout and stderr."""

    round: int


FromWorker = Survive | Left | LostConnection | Failed | Rehearsed | Seated
FromAgent = LastIteration | RoundEnded | NextRound

encode = msgspec.json.Encoder().encode
decode_from_worker = msgspec.json.Decoder(FromWorker).decode
_decode_from_agent = msgspec.json.Decoder(FromAgent).decode


class SurvivorLink:
    """A worker's side: one thread receives, any thread sends."""

    def __init__(self, path: str, survive: Survive) -> None:
        """Connect to the agent's socket at `path`. Raises OSError."""
        self._socket = socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        self._socket.connect(path)
        self.send(survive)

    @classmethod
    def from_environment(cls) -> "SurvivorLink | None":
        """The link of this worker; None if no agent started it, or one that only knows how to kill."""
        link = os.environ.get(AGENT_VARIABLE)
        path = os.path.join(os.path.dirname(link), SOCKET_NAME) if link else ""
        if not os.path.exists(path):
            return None
        return cls(path, Survive(os.getpid(), int(os.environ["EVERSTEP_ROUND"])))

    def send(self, message: FromWorker) -> None:
        """Raises OSError if the agent is gone."""
        self._socket.sendall(encode(message))

    def receive(self) -> tuple[FromAgent, list[int]] | None:
        """The next message with its file descriptors; None when the agent is gone."""
        packet, files, _, _ = socket.recv_fds(self._socket, LARGEST_PACKET, 2)
        return (_decode_from_agent(packet), files) if packet else None

    def close(self) -> None:
        """End the connection, also for the thread that receives: the worker ends with its round, as others do."""
        with suppress(OSError):  # The agent is gone.
            self._socket.shutdown(socket.SHUT_RDWR)
