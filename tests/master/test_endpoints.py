"""What the endpoints answer, to the right and to the wrong: nothing that is refused changes anything."""

import asyncio
import itertools
import math
from collections.abc import Awaitable, Callable

import msgspec
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from everstep.runtime.job import on_event
from everstep.runtime.job.events import Joined, StacksDumped, StopRequested
from everstep.runtime.job.records import DesiredChanged, NodeLeaving
from everstep.runtime.job.spec import JobSpec, Patience, Placement, RoleSpec
from everstep.runtime.job.transaction import Transaction
from everstep.runtime.master import read_journal
from everstep.runtime.master.endpoints import HEARTBEAT_POLL_S, Reply
from everstep.runtime.master.request_validation import LARGEST_BODY
from everstep.runtime.protocol.holdings import Holding
from everstep.runtime.protocol.messages import (
    JOB_HEADER,
    Ack,
    Action,
    Directive,
    Disconnected,
    Dumped,
    Evidence,
    Finished,
    Heartbeat,
    Join,
    Leaving,
    Persisted,
    Scale,
    SelfTest,
    WorkerExit,
)
from everstep.runtime.protocol.rounds import Round
from everstep.runtime.watch.slow_ranks import Pace
from tests.examples import examples
from tests.master.shell import TOKEN, Shell, TroubledStore, in_virtual_time

SPEC = JobSpec("j", {"worker": RoleSpec(2, 1)}, Patience(silence_s=1e6, join_timeout_s=1e6), hosts="")
NODES = ["worker-0-0", "worker-1-0"]
NODE = NODES[0]
KEY = "jobs/j/checkpoints/000001-000000005/rank-00000.safetensors"
RIGHT: dict[str, msgspec.Struct] = {
    "join": Join(NODE, "worker", "h", 1, "127.0.0.1:7", 29500, (Holding(1, 5, node=NODE, address="127.0.0.1:7"),), 1),
    "heartbeat": Heartbeat(NODE, 1, 5, "forward", ({"v": 1, "loss": 0.5},)),
    "fault": WorkerExit(NODE, 1, 0, 0, -9, 5, "Traceback", 1.0),
    "disconnected": Disconnected(NODE, 1, 0, 5, "RuntimeError: Connection closed by peer"),
    "finished": Finished(NODE, 1),
    "persisted": Persisted(NODE, Holding(1, 5, key=KEY, digest="d" * 32)),
    "evidence": Evidence(NODE, 1, 5, layout="l" * 32, digest="d" * 32),
    "leaving": Leaving(NODE, "preempted", 30.0),
    "dumped": Dumped(NODE, 1),
    "tested": SelfTest(NODE, 1, 0.5),
    "scale": Scale(2),
}
GETS = ["status", "nodes", "rounds/1"]
PACE = msgspec.to_builtins(Pace(0, 4, 50, 0.5, 2.0))


def play(story: Callable[[Shell], Awaitable[None]], spec: JobSpec = SPEC) -> TroubledStore:
    """The story with a master whose first round runs."""
    store = TroubledStore()
    shell = Shell(spec, store)

    async def run_story() -> None:
        await shell.open()
        await asyncio.gather(*(shell.join(node) for node in NODES))
        await story(shell)
        await shell.close()

    in_virtual_time(store, run_story)
    return store


async def _ask_without_effect(shell: Shell, ask: Awaitable[Reply]) -> Reply:
    """The reply, after which nothing is other than before."""
    brain, durable, objects = shell.brain.core.state, shell.brain.state, dict(shell.store.objects)
    reply = await ask
    assert shell.brain.core.state is brain
    assert shell.brain.state is durable
    assert shell.store.objects == objects
    return reply


async def _refusals(shell: Shell) -> dict[str, int]:
    return msgspec.json.decode((await shell.get("status")).body)["refused"]


def test_every_endpoint_refuses_a_wrong_token_and_counts_it() -> None:
    async def story(shell: Shell) -> None:
        for header in ("Bearer wrong", f"Basic {TOKEN}", TOKEN, "", "Bearer t0ken\u00e9\udcff"):
            for verb, message in RIGHT.items():
                reply = await _ask_without_effect(shell, shell.ask(verb, message, Authorization=header))
                assert reply.status == 401
            for path in GETS:
                assert (await shell.get(path, Authorization=header)).status == 401
        assert (await _refusals(shell))["unauthorized"] == 5 * (len(RIGHT) + len(GETS))

    play(story)


def test_an_agent_of_another_job_is_told_so_by_every_endpoint() -> None:
    async def story(shell: Shell) -> None:
        for verb, message in RIGHT.items():
            reply = await _ask_without_effect(shell, shell.ask(verb, message, **{JOB_HEADER: "other"}))
            assert (reply.status, b"master of job j, not of other" in reply.body) == (409, True)
        assert (await shell.ask("heartbeat", RIGHT["heartbeat"], **{JOB_HEADER: "j"})).status == 200
        assert (await _refusals(shell))["misplaced"] == len(RIGHT)

    play(story)


@pytest.mark.parametrize("verb", [verb for verb in RIGHT if verb != "scale"])
def test_a_node_that_the_job_does_not_know_is_misplaced(verb: str) -> None:
    async def story(shell: Shell) -> None:
        stranger = msgspec.structs.replace(RIGHT[verb], node="worker-7-3")
        assert (await _ask_without_effect(shell, shell.ask(verb, stranger))).status == 409

    play(story)


@pytest.mark.parametrize(("silence_s", "held_s"), [(3.0, 1.0), (1e6, 5.0)])
def test_who_has_nothing_to_hear_is_answered_often_enough_to_be_heard_of(silence_s: float, held_s: float) -> None:
    async def story(shell: Shell) -> None:
        now = asyncio.get_running_loop().time
        response = await shell.beat(NODE, 1)
        asked_at = now()
        await shell.beat(NODE, 1, msgspec.json.decode(response.body, type=Directive).number)
        assert now() - asked_at == pytest.approx(held_s)

    patience = Patience(silence_s=silence_s, join_timeout_s=1e6)
    play(story, msgspec.structs.replace(SPEC, patience=patience))


def test_a_new_master_answers_each_node_at_once_the_first_time() -> None:
    async def story(shell: Shell) -> None:
        now = asyncio.get_running_loop().time
        seen_number = msgspec.json.decode((await shell.beat(NODE, 1)).body, type=Directive).number
        await shell.close()
        await shell.open()
        times = [now()]
        for _ in range(3):
            directive = msgspec.json.decode((await shell.beat(NODE, 1, seen_number)).body, type=Directive)
            assert (directive.epoch, directive.number) == (2, seen_number), "nothing but who the master is"
            times.append(now())
        waits = [after - before for before, after in itertools.pairwise(times)]
        assert waits == [0.0, pytest.approx(HEARTBEAT_POLL_S), pytest.approx(HEARTBEAT_POLL_S)]

    play(story)


@pytest.mark.parametrize("layouts", ["ab", "aa"], ids=["each a shard of its own", "replicas"])
def test_that_states_are_certified_without_a_comparison_is_told_once(
    layouts: str, caplog: pytest.LogCaptureFixture
) -> None:
    async def story(shell: Shell) -> None:
        for iteration in (5, 10):
            evidence = [Evidence(node, 1, iteration, layout=layout, digest="d" * 32)
                        for node, layout in zip(NODES, layouts, strict=True)]  # fmt: skip
            await asyncio.gather(*(shell.ask("evidence", piece) for piece in evidence))
        assert list(shell.brain.state.certified) == [(1, 5), (1, 10)]

    play(story, msgspec.structs.replace(SPEC, certify_interval=5))
    told = [text for text in caplog.messages if text.startswith("states are certified by norms and loss only: ")]
    assert len(told) == (1 if layouts == "ab" else 0)


def test_a_node_of_an_earlier_life_of_the_job_has_no_place_in_the_new_one() -> None:
    async def story(shell: Shell) -> None:
        shell.brain.feed(StopRequested("told to stop"))
        await shell.brain.wait_until_durable()
        await shell.close()
        await shell.open()
        assert shell.brain.state.ended is None
        reply = await _ask_without_effect(shell, shell.ask("join", RIGHT["join"]))
        assert (reply.status, b"does not belong to job j: lost" in reply.body) == (409, True)
        response = await shell.ask("heartbeat", Heartbeat(NODE, 1))
        assert msgspec.json.decode(response.body, type=Directive).action is Action.LEAVE

    play(story)


def test_a_node_from_a_round_that_never_was_is_misplaced() -> None:
    async def story(shell: Shell) -> None:
        late = msgspec.structs.replace(RIGHT["join"], after_round=9)
        reply = await _ask_without_effect(shell, shell.ask("join", late))
        assert (reply.status, b"round 9" in reply.body) == (409, True)

    play(story)


@pytest.mark.parametrize(
    ("verb", "change", "field"),
    [
        ("join", {"role": 7}, "$.role"),
        ("join", {"slots": 0}, "$.slots"),
        ("join", {"slots": 10**9}, "$.slots"),
        ("join", {"master_port": 65536}, "$.master_port"),
        ("join", {"address": "nowhere"}, "$.address"),
        ("join", {"node": "../../etc"}, "$.node"),
        ("join", {"after_round": -1}, "$.after_round"),
        ("join", {"holdings": [{"round": 1, "iteration": 5, "shards": 10**12}]}, "$.holdings[0].shards"),
        ("join", {"holdings": [{"round": 1}]}, "iteration"),
        ("join", {"protocol": 99}, "protocol"),
        ("join", {"host": "h" * 5000}, "$.host"),
        ("heartbeat", {"iteration": 10**30}, "$.iteration"),
        ("heartbeat", {"round": "1"}, "$.round"),
        ("heartbeat", {"telemetry": [{"loss": None}]}, "$.telemetry[0]"),
        ("heartbeat", {"telemetry": [{"loss": 10**400}]}, "$.telemetry[0].loss"),
        ("heartbeat", {"still_s": -1.0}, "$.still_s"),
        ("heartbeat", {"paces": [{**PACE, "samples": 0}]}, "$.paces[0].samples"),
        ("heartbeat", {"paces": [PACE, {**PACE, "waited": 1.5}]}, "$.paces[1].waited"),
        ("heartbeat", {"paces": [{**PACE, "iteration_s": math.inf}]}, "$.paces[0].iteration_s"),
        ("heartbeat", {"paces": [{**PACE, "iteration_s": 10**400}]}, "$.paces[0].iteration_s"),
        ("heartbeat", {"silent": ["n" * 5000]}, "$.silent[0]"),
        ("fault", {"error": "e" * (17 << 10)}, "$.error"),
        ("fault", {"exit_code": None}, "$.exit_code"),
        ("fault", {"rank": -1}, "$.rank"),
        ("fault", {"kernel": ["", "k" * 5000]}, "$.kernel[1]"),
        ("finished", {"round": 1.5}, "$.round"),
        ("persisted", {"holding": {"round": 1, "iteration": 5, "key": "jobs/other/x"}}, "$.holding.key"),
        ("persisted", {"holding": {"round": 1, "iteration": 5, "key": KEY, "shard": -1}}, "$.holding.shard"),
        ("evidence", {"replay": "other gradients", "wrong_ranks": [2, -1]}, "$.wrong_ranks[1]"),
        ("leaving", {"grace_s": -5.0}, "$.grace_s"),
        ("leaving", {"reason": ["why"]}, "$.reason"),
        ("dumped", {"round": -1}, "$.round"),
        ("dumped", {"standings": [{"rank": 0, "world_size": 10**12}]}, "$.standings[0].world_size"),
        ("scale", {"nodes": "many"}, "$.nodes"),
        ("scale", {"nodes": 3}, "nodes"),
        ("scale", {"timeout_s": -1}, "$.timeout_s"),
        ("scale", {"role": "helper", "nodes": 1}, "role"),
    ],
)
def test_a_message_that_is_wrong_is_refused_with_the_fields_name(verb: str, change: dict, field: str) -> None:
    async def story(shell: Shell) -> None:
        body = msgspec.json.encode({**msgspec.to_builtins(RIGHT[verb]), **change})
        reply = await _ask_without_effect(shell, shell.ask(verb, body))
        assert reply.status == 400, reply
        assert field in msgspec.json.decode(reply.body)["error"], reply
        assert (await _refusals(shell))["malformed"] == 1

    play(story)


def test_the_paces_that_agents_send_are_taken() -> None:
    unknown, few = Pace(0, 0, 0, 0.0, 0.0), Pace(1, 3, 7, 0.0, 0.0)
    paces = [unknown, few, *(Pace(rank, 4, 50, waited, 2.0) for rank, waited in ((2, 0.0), (3, 1.0)))]

    async def story(shell: Shell) -> None:
        for node in NODES:
            assert (await shell.ask("heartbeat", Heartbeat(node, 1, 5, paces=tuple(paces)))).status == 200

    play(story)


@pytest.mark.parametrize("verb", RIGHT)
def test_a_body_that_is_too_large_is_refused(verb: str) -> None:
    async def story(shell: Shell) -> None:
        body = msgspec.json.encode(RIGHT[verb]).ljust(LARGEST_BODY + 1)
        reply = await _ask_without_effect(shell, shell.ask(verb, body))
        assert (reply.status, b"more than 1048576 bytes" in reply.body) == (400, True)

    play(story)


_JSON = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | st.text(max_size=20),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=8), inner, max_size=3),
    max_leaves=8,
)


def _mutated_bodies(verb: str) -> st.SearchStrategy[bytes]:
    """The right message of that verb with some of its fields replaced or missing."""
    right = msgspec.to_builtins(RIGHT[verb])
    fields = st.dictionaries(st.sampled_from(sorted(right)), _JSON, min_size=1, max_size=3)
    missing = st.sets(st.sampled_from(sorted(right)), max_size=2)
    return st.builds(
        lambda change, absent_names: msgspec.json.encode(
            {k: v for k, v in {**right, **change}.items() if k not in absent_names}
        ),
        fields,
        missing,
    )


def _bodies() -> st.SearchStrategy[tuple[str, bytes]]:
    noise = st.tuples(st.sampled_from(sorted(RIGHT)), st.binary(max_size=300))
    torn = st.sampled_from(sorted(RIGHT)).flatmap(
        lambda verb: st.tuples(
            st.just(verb), st.integers(0, 60).map(lambda cut: msgspec.json.encode(RIGHT[verb])[:cut])
        )
    )
    mutated = st.sampled_from(sorted(RIGHT)).flatmap(lambda verb: st.tuples(st.just(verb), _mutated_bodies(verb)))
    return noise | torn | mutated


@settings(max_examples=examples(60))
@given(requests=st.lists(_bodies(), min_size=1, max_size=12))
def test_no_bytes_make_an_endpoint_raise_and_what_is_refused_changes_nothing(requests: list[tuple[str, bytes]]) -> None:
    async def story(shell: Shell) -> None:
        for verb, body in requests:
            brain, refusals_before = shell.brain.core.state, await _refusals(shell)
            reply = await shell.ask(verb, body)
            assert reply.status in (200, 204, 400, 409), (verb, body, reply)
            if reply.status in (400, 409):
                assert shell.brain.core.state is brain
                assert sum((await _refusals(shell)).values()) == sum(refusals_before.values()) + 1

    store = play(story)
    list(read_journal(store, "j"))  # Whatever was taken can be read by the next master.


@given(method=st.text(max_size=8), path=st.text(max_size=40))
@settings(max_examples=examples(30))
def test_unknown_paths_are_not_found(method: str, path: str) -> None:
    async def story(shell: Shell) -> None:
        reply = await _ask_without_effect(shell, shell.request(method, f"/v1/{path}", b"{}"))
        assert reply.status in (404, 400), reply

    play(story)


def test_the_whole_round_is_fetched_when_needed() -> None:
    async def story(shell: Shell) -> None:
        round_ = msgspec.json.decode((await shell.get("rounds/1")).body, type=Round)
        assert [member.node for member in round_.members["worker"]] == NODES
        assert (await shell.get("rounds/1")).body is (await shell.get("rounds/1")).body
        for path in ("rounds/2", "rounds/", "rounds/one", "rounds/01"):
            assert (await shell.get(path)).status == 404

    play(story)


def test_the_nodes_are_listed_apart_from_the_status() -> None:
    async def story(shell: Shell) -> None:
        nodes = msgspec.json.decode((await shell.get("nodes")).body)
        assert [(node["name"], node["phase"]) for node in nodes] == [(name, "running") for name in NODES]
        status = msgspec.json.decode((await shell.get("status")).body)
        assert (status["epoch"], status["round"], status["ended"]) == (1, 1, None)

    play(story)


@pytest.mark.parametrize(("event", "verb"), [(StacksDumped, "dumped"), (Joined, "join")])
def test_a_brain_that_fails_ends_its_master_before_anything_of_it_is_journaled(
    monkeypatch: pytest.MonkeyPatch, event: type, verb: str
) -> None:
    def break_brain(case: Transaction, event: object) -> None:
        case.record(DesiredChanged(time=case.now, role="worker", nodes=1))
        raise KeyError("a bug")

    async def story(shell: Shell) -> None:
        journal = [key for key in shell.store.objects if "/journal/" in key]
        monkeypatch.setitem(on_event._HANDLERS, event, break_brain)
        asked_twice = asyncio.gather(*(shell.ask(verb, RIGHT[verb]) for _ in range(2)), return_exceptions=True)
        assert [type(outcome) for outcome in await asked_twice] == [KeyError, KeyError]
        assert "the next master replays" in str(await shell.wait_for_failure())
        assert [key for key in shell.store.objects if "/journal/" in key] == journal

    play(story)


def test_joins_of_one_moment_are_decided_together_and_who_is_refused_stops_no_other() -> None:
    async def story() -> None:
        await shell.open()
        joins = [Join(name, "worker", "h", 1, "127.0.0.1:7", 29500, number=1) for name in ["nobody", *NODES]]
        decide = shell.brain.core.handle_together
        crowds = list[int]()
        shell.brain.core.handle_together = lambda events, now: (crowds.append(len(events)), decide(events, now))[1]
        replies = await asyncio.gather(*(shell.ask("join", join) for join in joins))
        assert [reply.status for reply in replies] == [409, 200, 200]
        assert crowds[0] == 3
        await shell.close()

    shell = Shell(SPEC, TroubledStore())
    in_virtual_time(shell.store, story)


def test_a_node_that_must_leave_says_so_and_it_is_journaled() -> None:
    async def story(shell: Shell) -> None:
        reply = await shell.ask("leaving", Leaving(NODE, "spot instance reclaimed", 30.0))
        assert msgspec.json.decode(reply.body, type=Ack).epoch == 1

    store = play(story)
    (leaving,) = [record for record in read_journal(store, "j") if isinstance(record, NodeLeaving)]
    assert (leaving.node, leaving.detail) == (NODE, "spot instance reclaimed")


def test_stacks_that_nobody_asked_for_change_nothing() -> None:
    async def story(shell: Shell) -> None:
        assert (await _ask_without_effect(shell, shell.ask("dumped", RIGHT["dumped"]))).status == 200

    play(story)


def test_a_node_that_comes_back_under_its_old_name_is_not_told_to_leave() -> None:
    async def story(shell: Shell) -> None:
        assert (await shell.ask("leaving", Leaving(NODE, "preempted", 0.0))).status == 200
        assert shell.brain.state.nodes[NODE].action is Action.LEAVE
        seats = await asyncio.gather(shell.join(NODE, life=1), shell.join(NODES[1], 1))
        assert [seat.round for seat in seats] == [2, 2]

    play(story, msgspec.structs.replace(SPEC, placement=Placement.JOINED))
