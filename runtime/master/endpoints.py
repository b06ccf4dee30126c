"""The master's HTTP API, independent of the server: method, path, headers and body in; status and JSON out.

POST /v1/join, /v1/heartbeat, /v1/fault, /v1/disconnected, /v1/finished, /v1/persisted, /v1/evidence, /v1/unrestored,
/v1/leaving, /v1/dumped, /v1/tested, /v1/shard, /v1/scale; GET /v1/alive, /v1/status, /v1/training/<role>, /v1/nodes,
/v1/rounds/<n>, /metrics. The answers of the last three grow with the job.
200 an answer, 204 a long poll that ended without one, 400 an invalid body (names the field), 401 a wrong token, 404 no
such path, 409 the node is not part of this job and must end. Agents name their job in the header `Everstep-Job`, so an
agent that reaches another job's master gets 409 for any request.
"""

from collections.abc import Awaitable, Callable, Mapping
from typing import NamedTuple, TypeVar

import msgspec

from everstep.runtime.checkpoint.stored.keys import checkpoint_folder
from everstep.runtime.job import assignments, data_queues
from everstep.runtime.job.brain import Refused, UnknownNode
from everstep.runtime.job.events import (
    DataShardAsked,
    EvidenceGiven,
    HeartbeatSeen,
    Joined,
    LeaveAnnounced,
    NodeChecked,
    NodeFinishedRound,
    RankDisconnected,
    ScaleRequested,
    ShardStored,
    StacksDumped,
    WorkerExited,
)
from everstep.runtime.job.phases import JobPhase
from everstep.runtime.job.replicas import desired_size
from everstep.runtime.job.state import State, round_number
from everstep.runtime.master import request_validation
from everstep.runtime.master.journaled_brain import EVIDENCE, JournaledBrain
from everstep.runtime.master.metrics import CONTENT_TYPE, Metrics
from everstep.runtime.master.telemetry import LineFilter
from everstep.runtime.net.tls import Credentials
from everstep.runtime.net.token import Bearer
from everstep.runtime.protocol.messages import (
    JOB_HEADER,
    MASTER_NAME,
    Ack,
    Action,
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
    ShardLease,
    ShardRequest,
    Unrestored,
    WorkerExit,
)
from everstep.runtime.protocol.rounds import Seat

JOIN_POLL_S = 20.0
HEARTBEAT_POLL_S = 5.0
COMMIT_POLL_S = 5.0
SHARD_POLL_S = 5.0

M = TypeVar("M", bound=msgspec.Struct)
Read = Callable[[], Awaitable[bytes]]
"""Reads the request's body. Raises Refused if it is too large or cannot be read."""
_encode = msgspec.json.Encoder().encode


class Reply(NamedTuple):
    """Status and JSON."""

    status: int
    body: bytes = b""
    content_type: str = "application/json"


class Endpoints:
    """The endpoints of one master."""

    def __init__(
        self, brain: JournaledBrain, credentials: Credentials, on_telemetry: Callable[[Heartbeat], int]
    ) -> None:
        self._brain = brain
        self.credentials = credentials
        self._bearer = Bearer(credentials.token)
        self._on_telemetry = on_telemetry
        self._metrics, self._lines = Metrics(), LineFilter()
        self._unauthorized = self._malformed = self._misplaced = 0
        self._blob: tuple[int, bytes] = 0, b""
        self._met_nodes: set[str] = set()
        """Nodes that this master has given a seat or a directive; the others may not know yet that it is the master."""
        self._posts: Mapping[str, Callable[[Read], Awaitable[Reply]]] = {
            "/v1/join": self._post_join,
            "/v1/heartbeat": self._post_heartbeat,
            "/v1/fault": self._post_fault,
            "/v1/disconnected": self._post_disconnected,
            "/v1/finished": self._post_finished,
            "/v1/persisted": self._post_persisted,
            "/v1/evidence": self._post_evidence,
            "/v1/unrestored": self._post_unrestored,
            "/v1/leaving": self._post_leaving,
            "/v1/dumped": self._post_dumped,
            "/v1/tested": self._post_tested,
            "/v1/shard": self._post_shard,
            "/v1/scale": self._post_scale,
        }

    async def answer(self, method: str, path: str, headers: Mapping[str, str], read: Read) -> Reply:
        """Answer one request. The body is read only after the token was verified."""
        if not self._bearer.is_shown(headers):
            self._unauthorized += 1
            return _error_reply(401, "the Authorization header does not have this job's token")
        job = headers.get(JOB_HEADER, self._brain.spec.job)
        try:
            if job != self._brain.spec.job:
                raise UnknownNode(f"this is the master of job {self._brain.spec.job}, not of {job[:300]}")
            if method == "POST" and path in self._posts:
                return await self._posts[path](read)
            if method == "GET":
                return self._get(path)
            return _error_reply(404, f"there is no {method[:10]} {path[:300]}")
        except UnknownNode as error:
            self._misplaced += 1
            return _error_reply(409, str(error))
        except Refused as error:
            self._malformed += 1
            return _error_reply(400, str(error))

    def _get(self, path: str) -> Reply:
        if path == "/v1/alive":
            return Reply(200, MASTER_NAME.encode(), "text/plain")
        if path == "/v1/status":
            return self._get_status()
        if path == "/v1/nodes":
            return self._get_nodes()
        if path == "/metrics":
            text = self._metrics.text(self._brain.state, self._brain.spec, self._count_refusals())
            return Reply(200, text, CONTENT_TYPE)
        if path.startswith("/v1/training/"):
            return _json_reply(self._brain.core.training(path.removeprefix("/v1/training/")))
        if path.startswith("/v1/rounds/"):
            return self._get_round(path.removeprefix("/v1/rounds/"))
        return _error_reply(404, f"there is no GET {path[:300]}")

    async def _post_join(self, read: Read) -> Reply:
        join = request_validation.parse_message(Join, await read())
        await self._brain.feed_soon(Joined(join))
        await self._brain.wait_until_durable()  # Then `state` has no directive from before the join, such as to leave.

        seat: Seat | None = None

        def leaves(state: State) -> bool:
            directive = assignments.directive(state, join.node, join.life)
            return directive is not None and directive.action is Action.LEAVE

        def ready(state: State) -> bool:
            nonlocal seat
            seat = assignments.seat_for(state, join)
            return seat is not None or leaves(state) or assignments.is_spent(state, join)

        await self._brain.wait_until(join.node, ready, JOIN_POLL_S)
        if seat is not None:
            self._met_nodes.add(join.node)
            return _json_reply(seat)
        if leaves(self._brain.state):
            raise UnknownNode(f"{join.node} no longer belongs to this job")
        return Reply(204)

    async def _post_heartbeat(self, read: Read) -> Reply:
        beat = request_validation.parse_message(Heartbeat, await read())
        self._brain.feed(HeartbeatSeen(beat))
        new_beat = msgspec.structs.replace(beat, telemetry=self._lines.new_lines(beat)) if beat.telemetry else beat
        self._metrics.on_heartbeat(new_beat, self._brain.clock())
        stored_number = self._on_telemetry(new_beat)
        if not beat.telemetry and beat.node in self._met_nodes:

            def ready(state: State) -> bool:
                directive = assignments.directive(state, beat.node, beat.life)
                return directive is not None and (directive.number > beat.seen or directive.life > beat.life)

            # An answered agent sends the next heartbeat at once: that is its sign of life.
            limit_s = min(HEARTBEAT_POLL_S, self._brain.spec.patience.silence_s / 3)
            await self._brain.wait_until(beat.node, ready, limit_s)
        directive = assignments.directive(self._brain.state, beat.node, beat.life)
        if directive is None:
            return Reply(204)  # Its join has not arrived yet.
        self._met_nodes.add(beat.node)
        return _json_reply(msgspec.structs.replace(directive, stored=stored_number))

    async def _post_fault(self, read: Read) -> Reply:
        self._brain.feed(WorkerExited(request_validation.parse_message(WorkerExit, await read())))
        return await self._ack()

    async def _post_disconnected(self, read: Read) -> Reply:
        self._brain.feed(RankDisconnected(request_validation.parse_message(Disconnected, await read())))
        return await self._ack()

    async def _post_finished(self, read: Read) -> Reply:
        self._brain.feed(NodeFinishedRound(request_validation.parse_message(Finished, await read())))
        return await self._ack()

    async def _post_persisted(self, read: Read) -> Reply:
        report = request_validation.parse_message(Persisted, await read())
        place = (report.holding.round, report.holding.iteration)
        key = checkpoint_folder(self._brain.spec.job, place)
        if not report.holding.key.startswith(f"{key}/"):
            raise Refused(f"Persisted: Expected an object under {key} - at `$.holding.key`")
        self._brain.feed(ShardStored(report))
        await self._brain.wait_until_durable()

        def is_settled(state: State) -> bool:
            checkpoint = state.checkpoints.get(place)
            return checkpoint is None or bool(checkpoint.manifest)

        await self._brain.wait_until(key, is_settled, COMMIT_POLL_S)
        checkpoint, epoch = self._brain.state.checkpoints.get(place), self._brain.state.epoch
        return _json_reply(Ack(epoch, checkpoint.manifest) if checkpoint else Ack(epoch, is_overtaken=True))

    async def _post_evidence(self, read: Read) -> Reply:
        evidence = request_validation.parse_message(Evidence, await read())
        place = (evidence.round, evidence.iteration)
        self._brain.feed(EvidenceGiven(evidence))
        await self._brain.wait_until_durable()

        def is_settled(state: State) -> bool:
            return (
                place in state.certified or state.phase is not JobPhase.RUNNING or round_number(state) > evidence.round
            )

        await self._brain.wait_until(EVIDENCE, is_settled, COMMIT_POLL_S)
        return _json_reply(Ack(self._brain.state.epoch, is_certified=place in self._brain.state.certified))

    async def _post_unrestored(self, read: Read) -> Reply:
        await self._brain.report_unrestored(request_validation.parse_message(Unrestored, await read()))
        return await self._ack()

    async def _post_leaving(self, read: Read) -> Reply:
        self._brain.feed(LeaveAnnounced(request_validation.parse_message(Leaving, await read())))
        return await self._ack()

    async def _post_dumped(self, read: Read) -> Reply:
        self._brain.feed(StacksDumped(request_validation.parse_message(Dumped, await read())))
        return await self._ack()

    async def _post_tested(self, read: Read) -> Reply:
        self._brain.feed(NodeChecked(request_validation.parse_message(SelfTest, await read())))
        return await self._ack()

    async def _post_shard(self, read: Read) -> Reply:
        request = request_validation.parse_message(ShardRequest, await read())
        if not data_queues.NAME.fullmatch(request.queue):
            raise Refused("ShardRequest: Expected a name of letters, digits and . _ - - at `$.queue`")

        def ready(state: State) -> bool:
            queue = state.queues.get(request.queue)
            return queue is not None and (queue.has_work or queue.is_over)

        for poll_s in (SHARD_POLL_S, 0.0):
            self._brain.feed(DataShardAsked(request))
            await self._brain.wait_until_durable()
            queue = self._brain.state.queues.get(request.queue)
            epoch = self._brain.state.epoch
            if queue is not None and queue.size != request.size:
                have = f"queue {request.queue} has {queue.size} shards in this job, this worker says {request.size}"
                return _json_reply(ShardLease(epoch, data_queues.NOTHING, have))
            position = data_queues.answered_position(queue, request) if queue else None
            if position is not None:
                return _json_reply(ShardLease(epoch, position))
            await self._brain.wait_until(data_queues.waiting_key(request.queue), ready, poll_s)
        return Reply(204)

    async def _post_scale(self, read: Read) -> Reply:
        scale = request_validation.parse_message(Scale, await read())
        self._brain.feed(ScaleRequested(scale.role, scale.nodes, scale.timeout_s))
        return await self._ack()

    async def _ack(self) -> Reply:
        """Reply once the report is in the journal."""
        await self._brain.wait_until_durable()
        return _json_reply(Ack(self._brain.state.epoch))

    def _get_round(self, number: str) -> Reply:
        """The newest round's membership; encoded once for all agents."""
        round_ = self._brain.state.round
        if round_ is None or number != str(round_.number):
            return _error_reply(404, f"round {number[:20]} is not the newest round of this job")
        if self._blob[0] != round_.number:
            self._blob = round_.number, _encode(round_)
        return Reply(200, self._blob[1])

    def _get_status(self) -> Reply:
        state, spec = self._brain.state, self._brain.spec
        newest = max((key for key, checkpoint in state.checkpoints.items() if checkpoint.manifest), default=None)
        return _json_reply(
            {
                "job": spec.job,
                "epoch": state.epoch,
                "phase": state.phase,
                "reason": state.reason,
                "waits": self._brain.core.reason,
                "deadline": self._brain.core.next_deadline(),
                "round": state.round.number if state.round else 0,
                "iteration": state.iteration,
                "sizes": {role: desired_size(state, spec, role) for role in spec.roles},
                "committed": None if newest is None else state.checkpoints[newest].manifest,
                "ended": state.ended,
                "conditions": state.conditions,
                "refused": self._count_refusals(),
            }
        )

    def _count_refusals(self) -> dict[str, int]:
        """How many requests were refused, by reason."""
        return {"unauthorized": self._unauthorized, "malformed": self._malformed, "misplaced": self._misplaced}

    def _get_nodes(self) -> Reply:
        return _json_reply(
            [
                {"name": node.name, "role": node.role, "host": node.host, "phase": node.phase, "address": node.address}
                for node in self._brain.state.nodes.values()
            ]
        )


def _json_reply(message: object, status: int = 200) -> Reply:
    return Reply(status, _encode(message))


def _error_reply(status: int, text: str) -> Reply:
    return _json_reply({"error": text}, status)
