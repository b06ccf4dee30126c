"""Which states are sound: what the nodes know of their replicas, compared.

Invariant: restorable => certified, or certification is off.

Gradients are reduced to the same values on all ranks, so replicas of a state stay the same byte for byte. One that
differs was damaged where no digest of a copy can show it: in the memory or the arithmetic of its node. What all ranks
got alike, such as a gradient damaged before it was reduced, shows only in the loss, or if another rank computes that
gradient again (`everstep.Replay`).
"""

from collections import Counter, defaultdict
from collections.abc import Collection, Iterable
from dataclasses import dataclass

from everstep.runtime.protocol.messages import Evidence
from everstep.runtime.protocol.rounds import Round

KEPT_CERTIFIED = 256
"""Certified states that a job's state remembers."""
KEPT_EVIDENCE = 4
"""States that are not compared yet of which evidence is kept."""
NO_REPLICA = "nothing speaks against it; it has no replica"
"""Detail of a state that is certified though nothing was compared."""
MAJORITY_OF = 3
"""Replicas that it takes to tell which one is wrong."""


@dataclass(frozen=True)
class Verdict:
    """Whether a state is sound."""

    is_sound: bool
    detail: str
    nodes: tuple[str, ...] = ()
    """Those whose replica differs from that of a majority."""


def judge_replay(evidence: Evidence, round_: Round) -> Verdict:
    """The gradients of the state's last iteration came out otherwise on another rank. Raises IndexError: there is no
    such rank."""
    nodes = [member.node for role in round_.members.values() for member in role for _ in range(member.slots)]
    return Verdict(False, evidence.replay, tuple(dict.fromkeys(nodes[rank] for rank in evidence.wrong_ranks)))


def is_complete(evidence: Collection[Evidence], round_: Round) -> bool:
    """Is there evidence of every replica, or of every shard, that the round has?"""
    members = {member.node for role in round_.members.values() for member in role}
    shards = max(piece.shards for piece in evidence)
    if shards > 1:
        return len({piece.shard for piece in evidence}) == shards
    return {piece.node for piece in evidence} >= members


def judge(evidence: Iterable[Evidence]) -> Verdict:
    """Compare the replicas: those of one layout must have the same digest."""
    replicas = defaultdict[str, list[Evidence]](list)
    for piece in sorted(evidence, key=lambda piece: (piece.node, piece.shard)):
        if piece.doubt:
            return Verdict(False, f"{piece.node}: {piece.doubt}")
        replicas[piece.layout].append(piece)
    differing = [same for same in replicas.values() if len({piece.digest for piece in same}) > 1]
    if not differing:
        most = max(map(len, replicas.values()))
        return Verdict(True, f"{most} replicas agree" if most > 1 else NO_REPLICA)
    wrong = dict.fromkeys(node for same in differing for node in _outvoted_nodes(same))
    everybody = ", ".join(dict.fromkeys(piece.node for same in differing for piece in same))
    if wrong:
        return Verdict(False, f"{', '.join(wrong)} differs from the majority of {everybody}", tuple(wrong))
    return Verdict(False, f"the replicas of {everybody} differ, and none has a majority")


def _outvoted_nodes(same: list[Evidence]) -> list[str]:
    (digest, votes), *_ = Counter(piece.digest for piece in same).most_common()
    if len(same) < MAJORITY_OF or 2 * votes <= len(same):
        return []
    return [piece.node for piece in same if piece.digest != digest]
