"""The nodes of a job by name: an immutable mapping that is cheap to change even with 10,000 nodes.

A change copies one chunk of nodes and the list of chunks, never all nodes. Nodes are counted by role, phase and whether
they leave, and for each such kind one bit per chunk says whether the chunk has any. So counting nodes, or selecting a
few, does not visit every node. Versions share a dictionary that numbers the names: it only grows, and changing a
version that is not the newest copies it.
"""

from collections.abc import Collection, Iterable, Iterator, Mapping
from typing import NamedTuple

from everstep.runtime.job.nodes import LIVE, NodePhase, NodeState

CHUNK = 64

_Kind = tuple[str, NodePhase, bool]


class _Chunk(NamedTuple):
    nodes: tuple[NodeState, ...]
    counts: dict[_Kind, int]


class Roster(Mapping[str, NodeState]):
    """Nodes by name, in the order in which they became known."""

    __slots__ = ("_chunks", "_counts", "_index", "_size", "_where")

    def __init__(self, nodes: Iterable[NodeState] = ()) -> None:
        self._index: dict[str, int] = {}
        self._chunks: tuple[_Chunk, ...] = ()
        self._counts: dict[_Kind, int] = {}
        self._where: dict[_Kind, int] = {}
        self._size = 0
        fresh = self.with_nodes(nodes)
        for name in self.__slots__:
            setattr(self, name, getattr(fresh, name))

    def __getitem__(self, name: str) -> NodeState:
        at = self._index[name]
        if at >= self._size:
            raise KeyError(name)
        return self._chunks[at // CHUNK].nodes[at % CHUNK]

    def __iter__(self) -> Iterator[str]:
        return (node.name for chunk in self._chunks for node in chunk.nodes)

    def __len__(self) -> int:
        return self._size

    def __eq__(self, other: object) -> bool:
        return isinstance(other, Roster) and dict(self.items()) == dict(other.items())

    __hash__ = None  # type: ignore[assignment]

    def with_nodes(self, nodes: Iterable[NodeState]) -> "Roster":
        """A version with these nodes added or replaced."""
        fresh = object.__new__(Roster)
        index, size = self._index, self._size
        counts, where = dict(self._counts), dict(self._where)
        touched: dict[int, tuple[list[NodeState], dict[_Kind, int]]] = {}
        for node in nodes:
            at = index.get(node.name, size)
            if at >= size:
                if len(index) != size:  # Another version has added names since, which are not ours.
                    index = {name: at for at, name in enumerate(index) if at < size}
                at = index[node.name] = size
                size += 1
            number = at // CHUNK
            if number not in touched:
                chunk_before = self._chunks[number] if number < len(self._chunks) else _Chunk((), {})
                touched[number] = list(chunk_before.nodes), dict(chunk_before.counts)
            inside, tally = touched[number]
            kind = _kind(node)
            if at % CHUNK < len(inside):
                before = _kind(inside[at % CHUNK])
                inside[at % CHUNK] = node
                if before == kind:
                    continue
                tally[before] -= 1
                counts[before] -= 1
                if not tally[before]:
                    where[before] ^= 1 << number
            else:
                inside.append(node)
            tally[kind] = tally.get(kind, 0) + 1
            where[kind] = where.get(kind, 0) | 1 << number
            counts[kind] = counts.get(kind, 0) + 1
        chunks = list(self._chunks)
        for number in sorted(touched):
            inside, tally = touched[number]
            chunks[number : number + 1] = [_Chunk(tuple(inside), tally)]
        fresh._index, fresh._chunks, fresh._size = index, tuple(chunks), size
        fresh._counts, fresh._where = counts, where
        return fresh

    def count(self, role: str, phases: Collection[NodePhase], leaving: bool = False) -> int:
        """How many nodes of a role are in these phases; leaving nodes are counted separately."""
        return sum(self._counts.get((role, phase, leaving), 0) for phase in phases)

    def total(self, phases: Collection[NodePhase]) -> int:
        """How many nodes of the job are in these phases."""
        return sum(count for (_, phase, _), count in self._counts.items() if phase in phases)

    def count_ever(self, role: str) -> int:
        """How many nodes of a role there ever were."""
        return sum(count for (of, _, _), count in self._counts.items() if of == role)

    def roles(self) -> list[str]:
        """The roles that have or had a node, sorted."""
        return sorted({role for role, _, _ in self._counts})

    def any_leaving(self) -> bool:
        """Whether a live node is leaving."""
        return any(count for (_, phase, leaving), count in self._counts.items() if leaving and count and phase in LIVE)

    def select(self, role: str, phases: Collection[NodePhase], leaving: bool = False) -> Iterator[NodeState]:
        """The nodes of a role in these phases, in the order in which they became known."""
        bits = 0
        for phase in phases:
            bits |= self._where.get((role, phase, leaving), 0)
        while bits:
            lowest = bits & -bits
            bits ^= lowest
            for node in self._chunks[lowest.bit_length() - 1].nodes:
                if node.phase in phases and node.role == role and node.is_leaving is leaving:
                    yield node

    def changed_names(self, before: "Roster") -> list[str]:
        """Names of the nodes that are new or changed since the version `before`."""
        names = []
        for number, chunk in enumerate(self._chunks):
            chunk_before = before._chunks[number] if number < len(before._chunks) else None
            if chunk is chunk_before:
                continue
            names += [node.name for node in chunk.nodes if before.get(node.name) is not node]
        return names


def _kind(node: NodeState) -> _Kind:
    return node.role, node.phase, node.is_leaving
