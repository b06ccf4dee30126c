"""The world around one node's KeeperCore: workers, memory, a store, peers and a master, in virtual time.

It knows what the bytes of every slot really are: torn from the moment that somebody may write them. Each action is
compared with that, whatever the keeper believes.
"""

from collections.abc import Callable
from dataclasses import dataclass, field

from everstep.runtime.checkpoint.node.core import actions, events
from everstep.runtime.checkpoint.node.core.keeper_core import KeeperCore, KeeperOptions
from everstep.runtime.checkpoint.node.core.slots import Identity
from everstep.runtime.protocol.holdings import Flaw, Holding, Refusal, Restore
from tests.fake_agent import seat

NODE, PEER = "worker-0-0", "worker-1-0"
Slot = tuple[int, int]
READS = actions.ComputeDigest | actions.CheckDigest | actions.PutObject


@dataclass
class Worker:
    """One local rank's process."""

    alive: bool = False
    announced: bool = False
    iteration: int = 0
    granted: tuple[actions.Location, int] | None = None
    """The slot that it writes, and for which iteration."""


@dataclass
class World:
    """One node; two local ranks. `sharded`: each stages its own shard, of as many as there are ranks."""

    sharded: bool = False
    certifies: int = 0
    """Iterations between two states that are compared with other nodes' replicas."""
    now: float = 100.0
    round: int = 0
    world_size: int = 2
    start: tuple[int, int] = (0, 0)
    workers: list[Worker] = field(default_factory=lambda: [Worker(), Worker()])
    memory: dict[int, int] = field(default_factory=dict)
    """Capacity of each segment that has its file."""
    ready: dict[int, int] = field(default_factory=dict)
    """Slots of it that have memory."""
    bytes: dict[Slot, Identity | None] = field(default_factory=dict)
    works: list[actions.Work] = field(default_factory=list)
    """Under way."""
    waiting: dict[int, events.Question] = field(default_factory=dict)
    """Questions that are not answered, by ticket."""
    readers: dict[int, Slot] = field(default_factory=dict)
    """Peers that read, by ticket."""
    staged: dict[int, set[Identity]] = field(default_factory=lambda: {0: set(), 1: set()})
    arrived: dict[int, set[Identity]] = field(default_factory=lambda: {0: set(), 1: set()})
    """States that were staged in a rank's segments or fetched into them."""
    damaged: set[Identity] = field(default_factory=set)
    persisted: list[Holding] = field(default_factory=list)
    """Told, and not committed yet."""
    stored: set[Identity] = field(default_factory=set)
    rounds_persisted: set[int] = field(default_factory=set)
    """In which this node persisted replicated states; in every other one another node may put them under their name."""
    compared: dict[int, Identity] = field(default_factory=dict)
    """By rank: the newest state of this round that is due to be compared."""
    told: list[Identity] = field(default_factory=list)
    """Those whose evidence the master has."""
    certified: dict[int, Identity] = field(default_factory=dict)
    """By rank: the newest state that the keeper knows to be certified."""
    unrestored: bool = False
    closed: bool = False
    ticket: int = 0

    def __post_init__(self) -> None:
        options = KeeperOptions("job", NODE, persist_interval=2, workers=2, unreachable_s=3.0, store_patience_s=2.0)
        self.core = KeeperCore(options, name_of)

    # What the keeper is asked and told

    def ask(self, question: Callable[[int], events.Question]) -> object:
        """The answer, "waits" or "refused"."""
        self.ticket += 1
        question_asked = question(self.ticket)
        self.waiting[self.ticket] = question_asked
        return self.feed(question_asked).get(self.ticket, "waits")

    def feed(self, event: events.Event) -> dict[int, object]:
        """The answers to any questions that follow from the event."""
        answers: dict[int, object] = {}
        todo: list[events.Event] = [event]
        while todo:
            for action in self.core.handle(todo.pop(0), self.now):
                if answering_event := self.perform(action, answers):
                    todo.append(answering_event)
        return answers

    def perform(self, action: actions.Action, answers: dict[int, object]) -> events.Event | None:
        match action:
            case actions.Answer(ticket, reply):
                self.answered(self.waiting.pop(ticket), reply)
                answers[ticket] = reply
            case actions.Refuse(ticket):
                self.waiting.pop(ticket)
                answers[ticket] = "refused"
            case actions.MakeSegment(segment, slots=slots, capacity=capacity):
                self.memory[segment], self.ready[segment] = capacity, 0
                self.bytes |= {(segment, slot): None for slot in range(slots)}
                return events.SegmentMade(segment)
            case actions.EndAllocation(segment):
                assert not [
                    work for work in self.works if isinstance(work, actions.AllocateSlot) and work.segment == segment
                ]
            case actions.RemoveSegment(segment):
                assert self.closed or segment not in {slot[0] for slot in self.read() | self.written()}
                del self.memory[segment]
            case actions.ReportPersisted(holding):
                self.persisted.append(holding)
                self.stored.add(identity_of(holding))
            case actions.ReportEvidence(identity, where):
                assert self.content(where) == identity
                self.told.append(identity)
            case actions.ReportUnrestored():
                self.unrestored = True
            case actions.ReportProgress(ticket):
                assert isinstance(self.waiting[ticket], events.CopyShard)
            case actions.Warn():
                pass
            case _:
                self.begin_work(action)
        return None

    def answered(self, question: events.Question, reply: actions.Reply) -> None:
        match question, reply:
            case events.Acquire(local_rank=rank, iteration=iteration), actions.SlotGrant(where):
                self.write(where)
                self.workers[rank].granted = where, iteration
            case events.OpenShard(ticket=ticket, round=round_, iteration=iteration, shard=shard), actions.Location():
                content = self.content(reply)
                assert content is not None
                assert content[:3] == (round_, iteration, shard)
                self.readers[ticket] = reply[:2]
            case events.WaitForRestore(), actions.StartState(location=where) if where is not None:
                content = self.content(where)
                assert content is not None
                assert content[:2] == (reply.round, reply.iteration) == self.start
            case events.ListHoldings(), tuple():
                for holding in reply:
                    assert isinstance(holding, Holding)
                    assert identity_of(holding) in self.known
            case _:
                pass

    # What the bytes are

    known: set[Identity] = field(default_factory=set)
    """Every state that was ever whole in memory."""

    def read(self) -> set[Slot]:
        """Slots that somebody reads."""
        return {work.location[:2] for work in self.works if isinstance(work, READS)} | set(self.readers.values())

    def written(self) -> set[Slot]:
        """Slots that somebody writes."""
        fetched = {work.location[:2] for work in self.works if isinstance(work, actions.FetchShard)}
        return fetched | {worker.granted[0][:2] for worker in self.workers if worker.granted}

    def write(self, where: actions.Location) -> None:
        """Somebody may write there from now on."""
        slot = where[:2]
        assert slot not in self.read() | self.written()
        assert where.segment in self.memory
        assert where.slot < self.ready[where.segment]
        assert where.size <= self.memory[where.segment]
        self.bytes[slot] = None

    def content(self, where: actions.Location) -> Identity | None:
        assert where.segment in self.memory
        return self.bytes[where[:2]]

    def begin_work(self, work: actions.Work) -> None:
        match work:
            case actions.ComputeDigest(location=where) | actions.CheckDigest(location=where):
                assert self.content(where) is not None
            case actions.PutObject(location=where, key=key):
                content = self.content(where)
                assert content is not None
                assert key in (name_of(content), name_of(content, "digest"))
                has_own_name = key == name_of(content)
                assert not has_own_name or self.sharded or content.round in self.rounds_persisted
            case actions.FetchShard(location=where):
                self.write(where)
            case actions.RequestPeerCopy(request=request):
                assert self.core.segments.find(identity_of(request.source))
        self.works.append(work)

    # What may happen

    def end_work(self, which: int, well: bool = True, flaw: Flaw = Flaw.DAMAGED) -> None:
        """One of those that are under way ends."""
        work = self.works.pop(which % len(self.works))
        why = "" if well else "something is wrong"
        match work:
            case actions.AllocateSlot(segment):
                self.ready[segment] += well
                self.feed(events.AllocationEnded(segment, why))
            case actions.ComputeDigest(number, where):
                self.note_damage(where, well)
                self.feed(events.DigestEnded(number, "digest" if well else "", why))
            case actions.CheckDigest(number, where):
                self.note_damage(where, well)
                self.feed(events.CheckEnded(number, why))
            case actions.PutObject(number):
                self.feed(events.PutEnded(number, why))
            case actions.RequestPeerCopy(number):
                self.feed(events.PeerCopyEnded(number, why, silent=not well and flaw is Flaw.UNREACHABLE))
            case actions.FetchShard(number, where, source):
                if well:
                    self.bytes[where[:2]] = identity_of(source)
                    self.known.add(identity_of(source))
                    if segment := self.core.segments.get(where.segment):
                        self.arrived.setdefault(segment.local_rank, set()).add(identity_of(source))
                    self.feed(events.FetchEnded(number))
                else:
                    self.feed(events.FetchEnded(number, refusal(source, flaw)))

    def note_damage(self, where: actions.Location, well: bool) -> None:
        if not well and (content := self.bytes[where[:2]]) is not None:
            self.damaged.add(content)

    def begin(self, restore: Restore | None, peers: tuple[str, ...], persists: bool, world_size: int) -> None:
        """As an agent does it: the round's workers are dead before the next one begins."""
        for rank in range(len(self.workers)):
            self.bury(rank)
        self.round += 1
        self.world_size, self.unrestored = world_size, False
        if persists:
            self.rounds_persisted.add(self.round)
        self.start = (restore.round, restore.iteration) if restore else (0, 0)
        self.compared.clear()
        self.told.clear()
        self.certified = {
            rank: certified_slot for rank, certified_slot in self.certified.items() if certified_slot[:2] <= self.start
        }
        place = {"first_rank": 0, "world_size": world_size, "peers": peers, "certifies": self.certifies}
        place["keeps"] = len(peers)
        self.ask(lambda ticket: events.BeginRound(ticket, seat(self.round, restore, persists, **place)))
        self.workers = [Worker(alive=True, iteration=self.start[1]) for _ in self.workers]

    def bury(self, rank: int) -> None:
        worker = self.workers[rank]
        if worker.granted:
            self.bytes[worker.granted[0][:2]] = None
        self.workers[rank] = Worker()
        self.feed(events.WorkerDied(rank))

    def stage(self, rank: int, persist: bool, flaw: str = "") -> None:
        """That worker has written what it was granted."""
        worker = self.workers[rank]
        assert worker.granted
        where, iteration = worker.granted
        identity = Identity(self.round, iteration, *((rank, self.world_size) if self.sharded else ()))
        if not flaw:
            self.bytes[where[:2]], worker.granted, worker.iteration = identity, None, iteration
            self.known.add(identity)
            self.staged[rank].add(identity)
            self.arrived[rank].add(identity)
            if self.certifies and iteration % self.certifies == 0:
                self.compared[rank] = identity
        stage_facts = (rank, where.slot, iteration, where.size, persist, "", flaw)
        answer = self.ask(lambda ticket: events.CommitStage(ticket, *stage_facts))
        assert (answer == "refused") == bool(flaw or self.closed)

    def certify(self, which: int) -> None:
        """The master has compared one of those states."""
        identity = self.told.pop(which % len(self.told))
        for rank, compared in self.compared.items():
            if compared == identity:
                self.certified[rank] = identity
        self.feed(events.StateCertified(identity))

    def settle(self) -> None:
        """What is under way ends well, readers go, the master commits, until nothing is left to do."""
        for _ in range(1000):
            if self.works:
                self.end_work(0)
            elif self.readers:
                ticket = next(iter(self.readers))
                del self.readers[ticket]
                self.feed(events.ReaderGone(ticket))
            elif self.persisted:
                self.feed(events.CheckpointCommitted(identity_of(self.persisted.pop()), "manifest"))
            elif (deadline := self.core.next_deadline()) is not None:
                assert deadline <= self.now + 60
                self.now = max(deadline, self.now)
                self.feed(events.Tick())
            elif granted := [rank for rank, worker in enumerate(self.workers) if worker.granted]:
                self.stage(granted[0], persist=False)
            else:
                return
        raise AssertionError("it never comes to rest")


def name_of(identity: Identity, digest: str = "") -> str:
    """The key of its object."""
    return "/".join(map(str, identity)) + digest


def identity_of(holding: Holding) -> Identity:
    """Which state that is."""
    return Identity(holding.round, holding.iteration, holding.shard, holding.shards)


def refusal(source: Holding, flaw: Flaw) -> Refusal:
    """That source is of no use."""
    return Refusal(source.round, source.iteration, "it fails", flaw, source.key, source.node, source.shard)
