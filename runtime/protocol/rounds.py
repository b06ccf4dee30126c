"""A rendezvous round, its members, and a node's seat in it."""

from enum import StrEnum

import msgspec

from everstep.runtime.protocol.holdings import Restore


class Framework(StrEnum):
    """Which framework's variables the workers find, besides those of torchrun."""

    PYTORCH = "pytorch"
    """Those of torchrun alone."""
    TENSORFLOW = "tensorflow"
    """TF_CONFIG: roles chief, worker and ps are TensorFlow's cluster; evaluator is a task beside it."""
    HOROVOD = "horovod"
    """EVERSTEP_DISCOVERY_SCRIPT, which lists the hosts of all roles but launcher; EVERSTEP_SSH, the job's own keys."""
    PADDLE = "paddle"
    """PADDLE_TRAINER_ID, PADDLE_TRAINERS_NUM, PADDLE_TRAINER_ENDPOINTS, PADDLE_CURRENT_ENDPOINT..."""
    VOLCANO = "volcano"
    """VC_TASK_INDEX: the node's number in its role; VC_<ROLE>_NUM, VC_<ROLE>_HOSTS: a role's nodes."""


class Member(msgspec.Struct, frozen=True):
    """A node's place in a round."""

    node: str
    host: str
    address: str
    slots: int
    ip: str = ""
    """As the agent reported it; empty if it reported none."""
    zone: str = ""
    """The failure domain of its machine, as the agent reported it; empty: unknown."""
    port: int = 0
    """A free port on its host, for a framework's own server."""

    @property
    def machine_address(self) -> str:
        """The address of its machine: `address` without the port; an IPv6 address without brackets."""
        return self.address.rpartition(":")[0].strip("[]")

    def endpoint(self, offset: int = 0) -> str:
        """HOST:PORT for a framework's own server, `offset` ports after `port`."""
        host = self.machine_address
        return f"[{host}]:{self.port + offset}" if ":" in host else f"{host}:{self.port + offset}"


class Round(msgspec.Struct, frozen=True):
    """One rendezvous round: its members per role, in rank order. A new round restarts the workers."""

    number: int
    members: dict[str, tuple[Member, ...]]
    master_addr: str
    master_port: int
    restore: Restore | None
    reason: str
    certifies: int = 0
    """Iterations between two states that are compared across the nodes; 0: none is."""
    loss_spike: float = 0.0
    """A loss above this many times the median of those before is unsound; 0: none is for that."""
    skips: tuple[int, ...] = ()
    """Iterations that are skipped: their losses were unsound each time."""
    replays: int = 0
    """Iterations between two whose gradients another rank computes again; 0: none is."""
    framework: Framework = Framework.PYTORCH
    peer_copies: int = 1
    """Copies of each rank's own shard that other nodes' memory is to keep."""


class Neighbour(msgspec.Struct, frozen=True):
    """A member of the same round, and where its agent answers."""

    node: str
    address: str


class Seat(msgspec.Struct, frozen=True):
    """A node's position in a round: all it needs to start its workers."""

    epoch: int
    round: int
    role: str
    group_rank: int
    group_world_size: int
    first_rank: int
    """Global rank of this node's first worker; the others follow."""
    world_size: int
    role_first_rank: int
    role_world_size: int
    master_addr: str
    master_port: int
    restart_count: int
    """Rounds of this job before this one."""
    restore: Restore | None
    persists: bool
    """This node persists replicated state. Of sharded state, each node persists its own shards."""
    peers: tuple[str, ...] = ()
    """host:port of the agents, each on a host of its own, that keep copies of this node's shards."""
    keeps: int = 0
    """Nodes whose shards this one keeps copies of."""
    peer_copies: int = 1
    """How many `peers` the job wants; it may have fewer hosts."""
    neighbours: tuple[Neighbour, ...] = ()
    """The members that this node asks for a sign of life while it stands still."""
    certifies: int = 0
    """Iterations between two states that are compared across the nodes; 0: none is."""
    loss_spike: float = 0.0
    """A loss above this many times the median of those before is unsound; 0: none is for that."""
    skips: tuple[int, ...] = ()
    """Iterations that are skipped: their losses were unsound each time."""
    replays: int = 0
    """Iterations between two whose gradients another rank computes again; 0: none is."""
    framework: Framework = Framework.PYTORCH
    members: dict[str, tuple[Member, ...]] = {}
    """Those of the round, if the framework's variables name them all."""
