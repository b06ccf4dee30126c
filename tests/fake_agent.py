"""A keeper with a fake agent around it: a Unix socket that answers a worker's Link, one thread a connection, and a port
that serves its memory to peers."""

import fcntl
import http.server
import queue
import socket
import termios
import threading
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any

import msgspec
from msgspec.structs import replace

from everstep.runtime.checkpoint.node.core.options import KeeperOptions
from everstep.runtime.checkpoint.node.keeper import Keeper
from everstep.runtime.checkpoint.shard.segment import SegmentFile
from everstep.runtime.net.tls import Credentials
from everstep.runtime.protocol.holdings import CopyRequest, Holding, Refusal, Restore
from everstep.runtime.protocol.messages import Evidence
from everstep.runtime.protocol.rounds import Seat
from everstep.runtime.protocol.worker_link import (  # fmt: skip
    Acquire,
    Announce,
    Done,
    Fetch,
    Flush,
    Hello,
    Link,
    Problem,
    Report,
    Request,
    Staged,
    Unusable,
    Welcome,
)
from everstep.runtime.store import Store
from tests.harness import wait_until


def seat(round_: int, restore: Restore | None = None, persists: bool = True, **more: Any) -> Seat:
    place = {"group_rank": 0 if persists else 1, "group_world_size": 1, "first_rank": 0, "world_size": 1, **more}
    place |= {"role_first_rank": 0, "role_world_size": 1, "restart_count": round_ - 1}
    return Seat(
        1, round_, "worker", master_addr="127.0.0.1", master_port=1, restore=restore, persists=persists, **place
    )


PATIENCE_S = 30.0
"""Nothing that is waited for around a keeper takes so long."""
_decode = msgspec.json.Decoder(Request).decode


def _is_handled(connection: socket.socket, handling: threading.Lock) -> bool:
    """Is all that came on it read, and handled?"""
    with handling:
        return connection.fileno() < 0 or fcntl.ioctl(connection, termios.FIONREAD, bytes(4)) == bytes(4)


class _Peer(http.server.BaseHTTPRequestHandler):
    """As the agent's server answers."""

    keeper: Keeper
    protocol_version = "HTTP/1.1"

    def do_GET(self) -> None:
        if self.headers["Authorization"] != "Bearer secret":
            return self.send_error(401)
        try:
            with self.keeper.open_shard(*map(int, self.path.split("/")[-3:])) as shard:
                first, last = 0, len(shard) - 1
                if byte_range := self.headers.get("Range"):
                    first, last = map(int, byte_range.removeprefix("bytes=").split("-"))
                self.send_response(206 if byte_range else 200)
                self.send_header("Content-Length", str(last + 1 - first))
                self.end_headers()
                self.wfile.write(shard[first : last + 1])
        except KeyError:
            self.send_error(404)

    def do_POST(self) -> None:
        body = self.rfile.read(int(self.headers["Content-Length"]))
        answer = "held"
        try:
            self.keeper.copy_shard(msgspec.json.decode(body, type=CopyRequest), lambda: None)
        except RuntimeError as error:
            answer = str(error)
        self.send_response(200)
        self.send_header("Content-Length", str(len(answer.encode())))
        self.end_headers()
        self.wfile.write(answer.encode())

    def log_message(self, *_: Any) -> None:
        return


class Node:
    """A node as far as checkpoints know it: the keeper, and what its agent and master do with its messages."""

    def __init__(
        self, folder: Path, store: Store, name: str = "worker-0-0", interval: int = 10**9, **more: Any
    ) -> None:
        self.name, self.store = name, store
        self.persisted: list[Holding] = []
        self.refused: queue.Queue[tuple[Refusal, ...]] = queue.Queue()
        """What no source gave, as the master would be told."""
        self.reports: list[Report] = []
        self.commits = True
        self.workers = more.get("workers", 1)
        self.told: Callable[[Holding], None] = lambda _: None
        folder.mkdir(exist_ok=True)
        self.shm = folder / "shm"
        self.shm.mkdir(exist_ok=True)
        credentials = more.pop("credentials", Credentials("secret"))
        impatient = {"unreachable_s": 0.0, "store_patience_s": 0.0, "death_s": 0.0}
        options = KeeperOptions("job", name, **{"persist_interval": interval, **impatient, **more})
        self.evidence: queue.Queue[Evidence] = queue.Queue()
        """What the master would be told of states that are compared."""
        callbacks = (self._on_persisted, self.refused.put, self.shm, self.evidence.put)
        self._keeper = Keeper(options, store, credentials, *callbacks)
        self._server: http.server.ThreadingHTTPServer | None = None
        self._connections: list[tuple[socket.socket, threading.Lock]] = []
        self.path = str(folder / "agent.sock")
        self._socket = socket.socket(socket.AF_UNIX)
        self._socket.bind(self.path)
        self._socket.listen()
        threading.Thread(target=self._accept, daemon=True).start()

    def _on_persisted(self, holding: Holding) -> None:
        self.persisted.append(holding)
        self.told(holding)
        if self.commits:
            self._keeper.note_commit(holding, holding.key.rpartition("/")[0] + "/manifest.json")

    def begin(self, round_: int, restore: Restore | None = None, persists: bool = True, **place: Any) -> None:
        self.keeper.new_round(seat(round_, restore, persists, **place))

    @property
    def address(self) -> str:
        """Where peers read this node's memory; served from the first question on."""
        if self._server is None:
            handler = type("Peer", (_Peer,), {"keeper": self.keeper})
            self._server = http.server.ThreadingHTTPServer(("127.0.0.1", 0), handler)
            threading.Thread(target=self._server.serve_forever, daemon=True).start()
        return f"127.0.0.1:{self._server.server_port}"

    def newest(self, reason: str = "newest whole") -> Restore:
        """What a master would let the next round start from."""
        newest_holding = max(
            self.keeper.holdings("127.0.0.1:1"), key=lambda holding: (holding.round, holding.iteration)
        )
        return Restore(newest_holding.round, newest_holding.iteration, (newest_holding,), reason)

    def link(self, round_: int = 1, local_rank: int = 0) -> Link:
        return Link(self.path, Hello(1, local_rank, local_rank, round_))

    def has_memory(self, patience_s: float = PATIENCE_S) -> None:
        """Wait until every slot has its memory: before, a stage may take the place of an older one instead."""

        def there() -> bool:
            return all(segment.ready_slots == segment.slots for segment in map(SegmentFile.open, self.shm.iterdir()))

        wait_until(there, "all slots have their memory", patience_s)

    @property
    def keeper(self) -> Keeper:
        """It has heard all that workers had said of their stages until now."""
        for connection, handling in list(self._connections):
            wait_until(partial(_is_handled, connection, handling), "the link is read", PATIENCE_S, 0.001)
        return self._keeper

    def _accept(self) -> None:
        while True:
            try:
                connection = self._socket.accept()[0]
            except OSError:
                return
            threading.Thread(target=self._serve, args=(connection,), daemon=True).start()

    def _serve(self, connection: socket.socket) -> None:
        handling, local_rank, buffer = threading.Lock(), 0, b""
        self._connections.append((connection, handling))
        try:
            while connection.recv(1, socket.MSG_PEEK):
                with handling:
                    *lines, buffer = (buffer + connection.recv(1 << 16)).split(b"\n")
                    requests = [_decode(line) for line in lines]
                    replies = [self._reply(request, local_rank) for request in requests if isinstance(request, Staged)]
                for request in requests:
                    if isinstance(request, Hello):
                        local_rank = request.local_rank
                    if isinstance(request, Report):
                        self.reports.append(request)
                        continue
                    if isinstance(request, Unusable):
                        self.refused.put(request.refusals)
                        continue
                    reply = replies.pop(0) if isinstance(request, Staged) else self._reply(request, local_rank)
                    connection.sendall(msgspec.json.encode(reply) + b"\n")
        except ConnectionError:  # A killed worker's is reset.
            pass
        finally:
            self._connections.remove((connection, handling))
            with handling:
                connection.close()

    def _reply(self, request: Request, local_rank: int) -> msgspec.Struct:
        try:
            return self._answer(request, local_rank)
        except (RuntimeError, OSError) as error:
            return Problem(str(error))

    def _answer(self, request: Request, local_rank: int) -> msgspec.Struct:
        match request:
            case Hello():
                start = self._keeper.expected_range(local_rank)
                return replace(Welcome("job", self.store.uri), **(start._asdict() if start else {}))
            case Announce():
                return self._keeper.announce(local_rank, request.capacity, request.sharded)
            case Acquire():
                return self._keeper.acquire(local_rank, request.iteration)
            case Staged():
                self._keeper.commit_stage(local_rank, request)
                return Done()
            case Flush():
                return Done(self._keeper.flush(local_rank, request.iteration))
            case Fetch():
                return self._keeper.wait_for_restore(local_rank)
        raise TypeError(request)

    def close(self) -> None:
        self._keeper.close()
        self._socket.close()
        if self._server is not None:
            self._server.shutdown()
            self._server.server_close()
