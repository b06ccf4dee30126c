"""The archive: old segments leave the listing, and no number of them is ever won again, whoever sleeps how long."""

import gzip
import threading
from collections.abc import Callable, Iterator, Sequence
from contextlib import suppress
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from everstep.runtime.job.fold import fold
from everstep.runtime.job.records import DesiredChanged
from everstep.runtime.job.state import State
from everstep.runtime.journal import segments, snapshots
from everstep.runtime.journal.journal import Fenced, Journal, claim, find_master, read_journal, read_state
from everstep.runtime.journal.segments import JournalError
from everstep.runtime.store import Entry, StoreError
from tests.master.shell import TroubledStore

BLOCK = 2


@pytest.fixture(autouse=True)
def small() -> Iterator[None]:
    """Blocks of few segments."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(segments, "BLOCK", BLOCK)
        yield


def _write(journal: Journal, state: State, number: int = 1) -> State:
    for _ in range(number):
        record = DesiredChanged(time=state.time, role="worker", nodes=state.sizes.get("worker", 0) + 1)
        journal.write(journal.draft([record]))
        state = fold([record], state)
    return state


def _grow(store: TroubledStore, blocks: int) -> tuple[Journal, State]:
    """A job of one master with a snapshot and so many archived blocks."""
    journal, state = claim(store, "j", "a:1", 1.0)
    for _ in range(blocks):
        state = _write(journal, state, BLOCK)
        number = journal.draft([]).number - 1
        snapshots.write(store, "j", number, state)
        segments.archive(store, "j", number)
    return journal, state


def _listing(store: TroubledStore) -> list[int]:
    return segments.listed_numbers(store, "j")


def test_archived_segments_leave_the_listing_claims_stay_and_all_can_be_read() -> None:
    store = TroubledStore()
    journal, state = _grow(store, 4)
    assert _listing(store) == [1, 9], "the claim, and what no block has"
    assert fold(read_journal(store, "j")) == state == read_state(store, "j")
    assert find_master(store, "j") == (1, "a:1")
    _, state_after = claim(store, "j", "b:2", 2.0)
    assert state_after.sizes == state.sizes
    with pytest.raises(Fenced):
        _write(journal, state)


@pytest.mark.parametrize("blocks", [3, 30])
def test_a_takeover_asks_the_store_as_often_however_much_is_archived(blocks: int) -> None:
    class Counted(TroubledStore):
        """Each page of a listing is a request; here a page has one object."""

        requests = 0

        def get(self, key: str, start: int = 0, length: int | None = None) -> bytes:
            self.requests += 1
            return super().get(key, start, length)

        def list(self, prefix: str) -> Iterator[Entry]:
            entries = [*super().list(prefix)]
            self.requests += len(entries) + 1
            return iter(entries)

    store = Counted()
    _, state = _grow(store, blocks)
    store.requests = 0
    assert find_master(store, "j") == (1, "a:1")
    _, state_after = claim(store, "j", "b:2", 2.0)
    assert state_after.sizes == state.sizes
    assert store.requests == 13


def test_a_block_that_lacks_its_last_segments_is_named() -> None:
    store = TroubledStore()
    _grow(store, 3)
    key = "jobs/j/archive/000003.jsonl.gz"
    whole = gzip.decompress(store.objects[key])
    store.objects[key] = gzip.compress(whole[: whole.rindex(segments.HEADER)])
    with pytest.raises(JournalError, match=r"000004 is missing, .*000005 is there"):
        list(read_journal(store, "j"))


def test_without_a_readable_snapshot_the_archive_is_replayed() -> None:
    store = TroubledStore()
    _, state = _grow(store, 3)
    for key in [key for key in store.objects if "/snapshots/" in key]:
        store.objects[key] = b"damaged"
    assert read_state(store, "j") == state


def test_a_master_that_slept_meets_its_successors_claim_however_much_is_archived() -> None:
    store = TroubledStore()
    sleeper, stale = _grow(store, 1)
    journal, state = claim(store, "j", "b:2", 2.0)
    for _ in range(3):
        state = _write(journal, state, BLOCK)
        segments.archive(store, "j", journal.draft([]).number - 1)
    assert segments.is_archived(store, "j", sleeper.draft([]).number), "the fault must have fired"
    with pytest.raises(Fenced):
        sleeper.confirm()
    with pytest.raises(Fenced):
        _write(sleeper, stale)
    assert fold(read_journal(store, "j")) == state


class Sleepy(TroubledStore):
    """Before its first `create` something else happens."""

    def __init__(self, objects: dict[str, bytes], meanwhile: Callable[[], None]) -> None:
        super().__init__()
        self.objects = objects
        self._meanwhile: list[Callable[[], None]] = [meanwhile]

    def create(self, key: str, data: bytes) -> bool:
        while self._meanwhile:
            self._meanwhile.pop()()
        return super().create(key, data)


def test_a_claim_that_slept_until_its_number_was_archived_does_not_count() -> None:
    store = TroubledStore()
    journal, state = _grow(store, 1)

    def grow() -> None:
        nonlocal state
        for _ in range(3):
            state = _write(journal, state, BLOCK)
            segments.archive(store, "j", journal.draft([]).number - 1)

    late = journal.draft([]).number
    with pytest.raises(Fenced, match="meanwhile"):
        claim(Sleepy(store.objects, grow), "j", "b:2", 2.0)
    assert late in _listing(store), "the fault must have fired: the number was free"
    _write(journal, state)
    assert find_master(store, "j") == (1, "a:1")
    assert read_state(store, "j") == fold(read_journal(store, "j"))


def test_a_late_claim_that_does_not_count_is_not_read_for_the_archived_segment_of_its_number() -> None:
    class Reader(TroubledStore):
        """After its first look at the segments they are archived, and a late claim takes a number."""

        fired = False

        def list(self, prefix: str) -> Iterator[Entry]:
            entries = [*super().list(prefix)]
            if prefix == segments.prefix("j") and not self.fired:
                self.fired = True
                for _ in range(3):
                    segments.archive(plain, "j", 3 * BLOCK + 1)
                late = store.objects["jobs/j/journal/000001"].replace(b'"epoch":1', b'"epoch":2')
                assert store.create(segments.key("j", 2), late)
            return iter(entries)

    store, plain = Reader(), TroubledStore()
    store.objects = plain.objects
    journal, state = claim(plain, "j", "a:1", 1.0)
    state = _write(journal, state, 3 * BLOCK)
    assert fold(read_journal(store, "j")) == state
    assert store.fired, "the fault must have fired"


@pytest.mark.parametrize("operations", range(2 * BLOCK + 1))
def test_an_archiver_killed_anywhere_is_finished_by_the_next(operations: int) -> None:
    class Killed(TroubledStore):
        left = operations

        def _count(self) -> None:
            self.left -= 1
            if self.left < 0:
                raise StoreError("killed")

        def create(self, key: str, data: bytes) -> bool:
            self._count()
            return super().create(key, data)

        def delete(self, key: str) -> None:
            self._count()
            super().delete(key)

    store = TroubledStore()
    journal, state = claim(store, "j", "a:1", 1.0)
    state = _write(journal, state, 3 * BLOCK)
    dying = Killed()
    dying.objects = store.objects
    with suppress(StoreError):
        for _ in range(3):
            segments.archive(dying, "j", 3 * BLOCK)
    assert dying.left < 0, "the fault must have fired"
    assert fold(read_journal(store, "j")) == state
    for _ in range(3):
        segments.archive(store, "j", 3 * BLOCK)
    assert _listing(store) == [1, 5, 6, 7]
    assert fold(read_journal(store, "j")) == state


def test_a_damaged_block_is_named() -> None:
    store = TroubledStore()
    _grow(store, 2)
    store.objects["jobs/j/archive/000003.jsonl.gz"] = store.objects["jobs/j/archive/000003.jsonl.gz"][:20]
    with pytest.raises(JournalError, match=r"archive/000003\.jsonl\.gz is damaged"):
        list(read_journal(store, "j"))


def test_a_damaged_block_does_not_keep_the_next_from_being_archived() -> None:
    store = TroubledStore()
    journal, state = _grow(store, 1)
    store.objects["jobs/j/archive/000001.jsonl.gz"] = b"damaged"
    _write(journal, state, 2 * BLOCK)
    segments.archive(store, "j", journal.draft([]).number - 1)
    assert "jobs/j/archive/000003.jsonl.gz" in store.objects
    assert 1 in _listing(store)


class _MasterKilled(BaseException):
    """The master was killed."""


class Master(threading.Thread):
    """Claims, writes, snapshots and archives as its orders say; stands still before every operation of the store."""

    def __init__(self, store: "Turns", number: int, orders: Sequence[str]) -> None:
        super().__init__(daemon=True)
        self.store, self.number, self.orders = store, number, orders
        self.go, self.stands = threading.Semaphore(0), threading.Semaphore(0)
        self.over = self.killed = self.astray = False

    def advance(self) -> None:
        """One operation of the store."""
        if not self.over:
            self.go.release()
            self.stands.acquire()

    def pause(self) -> None:
        """Until the next turn."""
        self.stands.release()
        self.go.acquire()
        if self.killed:
            raise _MasterKilled

    def run(self) -> None:
        self.go.acquire()
        self.astray = True
        try:
            with suppress(_MasterKilled, Fenced):
                self._live()
            self.astray = False
        finally:
            self.over = True
            self.stands.release()

    def _live(self) -> None:
        address = f"m:{self.number}"
        while True:
            try:
                journal, state = claim(self.store, "j", address, 1.0)
                break
            except StoreError:
                address += "1"
        self.store.claims.append((journal.draft([]).number - 1, journal.epoch, state))
        for order in self.orders:
            if order == "write":
                record = DesiredChanged(time=state.time, role=f"r{self.number}", nodes=len(self.store.written))
                draft = journal.draft([record])
                _try_until_done(lambda draft=draft: journal.write(draft))
                self.store.written.append((draft.number, draft.data))
                state = fold([record], state)
            else:
                number = journal.draft([]).number - 1
                _try_until_done(lambda number=number, state=state: snapshots.write(self.store, "j", number, state))
                _try_until_done(lambda number=number: segments.archive(self.store, "j", number))


def _try_until_done(work: Callable[[], None]) -> None:
    while True:
        try:
            return work()
        except StoreError:
            continue


class Turns(TroubledStore):
    """Lets one master act at a time; some answers to `create` are lost."""

    def __init__(self, losses: Sequence[bool]) -> None:
        super().__init__()
        self.lost = list(losses)
        self.claims: list[tuple[int, int, State]] = []
        self.written: list[tuple[int, bytes]] = []

    def _turn(self) -> None:
        thread = threading.current_thread()
        if isinstance(thread, Master):
            thread.pause()

    def get(self, key: str, start: int = 0, length: int | None = None) -> bytes:
        self._turn()
        return super().get(key, start, length)

    def create(self, key: str, data: bytes) -> bool:
        self._turn()
        created = super().create(key, data)
        if self.lost and self.lost.pop():
            self._turn()
            raise StoreError("the answer was lost")
        return created

    def list(self, prefix: str) -> Iterator[Entry]:
        self._turn()
        return super().list(prefix)

    def delete(self, key: str) -> None:
        self._turn()
        super().delete(key)


ORDERS = st.lists(st.sampled_from(["write", "write", "keep"]), min_size=6, max_size=24)
TURNS = st.lists(
    st.tuples(st.integers(0, 2), st.one_of(st.integers(1, 12), st.integers(20, 200))), min_size=2, max_size=8
)


@settings(max_examples=60)
@given(st.tuples(ORDERS, ORDERS, ORDERS), TURNS, st.lists(st.booleans(), max_size=12))
def test_whatever_the_turns_each_number_is_won_once_and_every_win_is_in_the_history(
    orders: tuple[list[str], ...], turns: list[tuple[int, int]], losses: list[bool]
) -> None:
    store = Turns(losses)
    masters = [Master(store, number, order) for number, order in enumerate(orders)]
    for master in masters:
        master.start()
    for number, operations in turns:
        for _ in range(operations):
            masters[number].advance()
    masters[0].killed = True  # Where it stands; who slept wakes up.
    for master in (*masters[1:], masters[0]):
        while not master.over:
            master.advance()
        assert not master.astray
    _check(store)


def _check(store: Turns) -> None:
    bodies = list(segments.read(store, "j"))
    assert [body.number for body in bodies] == list(range(1, len(bodies) + 1))
    history = {body.number: body.data for body in bodies}
    for number, data in store.written:
        assert history[number] == data
    assert len({number for number, _ in store.written}) == len(store.written)
    assert len({epoch for _, epoch, _ in store.claims}) == len(store.claims)
    records = list(read_journal(store, "j"))
    assert len(records) == len(bodies), "one each, here"
    for number, epoch, state in store.claims:
        assert state.epoch == epoch
        assert state == fold(records[:number]), "what a master began from is the history before it"
    assert read_state(store, "j") == fold(records)


def test_a_store_of_files_archives_as_well(tmp_path: Path) -> None:
    from everstep.runtime.store import DirectoryStore

    store = DirectoryStore(tmp_path)
    journal, state = claim(store, "j", "a:1", 1.0)
    state = _write(journal, state, 3 * BLOCK)
    for _ in range(3):
        segments.archive(store, "j", 3 * BLOCK + 1)
    assert segments.listed_numbers(store, "j") == [1, 7]
    assert fold(read_journal(store, "j")) == state
