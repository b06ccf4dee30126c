"""What TLS costs: a shard that a peer sends, and a handshake.

python -m benchmarks.hardening.tls
"""

import argparse
import asyncio
import mmap
import os
import shutil
import statistics
import subprocess
import sys
import time
from collections.abc import Callable, Iterator, Mapping
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from dataclasses import dataclass
from multiprocessing.connection import Connection
from typing import Any, cast

from benchmarks.acceptance import Line, is_asked, judge, parse_options
from benchmarks.master import MIB, start_process
from everstep.runtime.agent.peer_server import application
from everstep.runtime.checkpoint.shard.fetch import read
from everstep.runtime.net.tls import Credentials, credentials_of
from everstep.runtime.net.token_gate import TokenGate, application_of, listen
from everstep.runtime.protocol.holdings import Holding

JOB, TOKEN = "benchmark", "benchmark"
SIZE = 1 << 30
ROUNDS = 5
BUDGET = 1.10
GBIT = 10
"""Gbit/s of the network that is made for the second measurement."""
HANDSHAKES = 500
NETWORK = f"""
set -e
ip link set lo up
tc qdisc add dev lo root tbf rate {GBIT}gbit burst 1mb latency 10ms
exec "$@"
"""
"""Gives this process a network of its own, whose loopback is as slow as a network."""


class _Holder:
    """A keeper with one shard."""

    def __init__(self, size: int) -> None:
        self._shard = _filled_memory(size)

    @contextmanager
    def open_shard(self, *_: int) -> Iterator[memoryview]:
        """Fetch the whole shard."""
        yield self._shard[:]


def _filled_memory(size: int) -> memoryview:
    """Memory that has been touched."""
    memory, some = memoryview(mmap.mmap(-1, size)), os.urandom(MIB)
    for start in range(0, size, MIB):
        memory[start : start + MIB] = some[: size - start]
    return memory


def _peer(pipe: Connection, size: int, tls: bool) -> None:
    """A process with an agent's server; reports its port, then its CPU seconds whenever asked."""

    async def serve() -> None:
        credentials, listener = credentials_of(TOKEN, JOB, tls=tls), listen("127.0.0.1", 0)
        with ThreadPoolExecutor(1) as threads:
            gate = TokenGate(credentials)
            app = application(cast(Any, _Holder(size)), gate, threads, no_question)
            async with gate.serve(application_of(app), listener):
                pipe.send((listener.getsockname()[1], credentials.authority))
                while await asyncio.to_thread(pipe.recv):
                    pipe.send(time.process_time())

    asyncio.run(serve())


async def no_question(node: str, address: str) -> str:
    """Nobody asks this peer whether it lives."""
    raise AssertionError((node, address))


class _Way:
    """Connections to one peer, in clear or with TLS."""

    def __init__(self, size: int, tls: bool) -> None:
        self._process, self._pipe = start_process(_peer, size, tls)
        self._port, authority = self._pipe.recv()
        self.credentials = Credentials(TOKEN, authority)
        self._source = Holding(1, 1, size=size, node="peer", address=f"127.0.0.1:{self._port}")

    def fetch(self, buffer: memoryview) -> "Cost":
        """Fetch the whole shard."""
        before, began = self._own_cpu_seconds(), time.perf_counter()
        read(self._source, 0, buffer, cast(Any, None), self.credentials)
        took = time.perf_counter() - began
        return Cost(took, self._own_cpu_seconds() - before)

    def shake_hands(self, count: int) -> "Cost":
        """Make so many connections, each with one request; returns what they cost the peer."""
        before, began = self._peer_cpu_seconds(), time.perf_counter()
        for _ in range(count):
            connection = self.credentials.connection(f"127.0.0.1:{self._port}", 30.0)
            connection.request("GET", "/v1/nothing", headers=dict(self.credentials.headers))
            connection.getresponse().read()
            connection.close()
        return Cost(time.perf_counter() - began, self._peer_cpu_seconds() - before)

    def close(self) -> None:
        """End the peer."""
        self._process.kill()
        self._process.join()

    def _own_cpu_seconds(self) -> float:
        return time.process_time() + self._peer_cpu_seconds()

    def _peer_cpu_seconds(self) -> float:
        self._pipe.send(True)
        return self._pipe.recv()


@dataclass(frozen=True)
class Cost:
    """The cost of one transfer."""

    seconds: float
    processor_s: float


@contextmanager
def _both(size: int) -> Iterator[tuple[_Way, _Way]]:
    ways: list[_Way] = []
    try:
        ways += (_Way(size, tls) for tls in (False, True))
        yield ways[0], ways[1]
    finally:
        for way in ways:
            way.close()


def compare() -> tuple[Cost, Cost]:
    """Medians of a shard's transfer in clear and with TLS, taking turns."""
    buffer = _filled_memory(SIZE)
    with _both(SIZE) as ways:
        costs = [[way.fetch(buffer) for way in ways] for _ in range(ROUNDS + 1)][1:]

    def median(way: int) -> Cost:
        each = [pair[way] for pair in costs]
        return Cost(statistics.median(c.seconds for c in each), statistics.median(c.processor_s for c in each))

    return median(0), median(1)


def _verdict(clear: Cost, tls: Cost) -> tuple[str, bool]:
    ratio = tls.seconds / clear.seconds
    words = f"{ratio:.2f} x: {tls.seconds:.2f} s against {clear.seconds:.2f} s"
    return f"{words}; both ends' processors {tls.processor_s:.2f} s against {clear.processor_s:.2f} s", ratio <= BUDGET


def on_loopback(_: argparse.Namespace) -> Iterator[Line]:
    """Within this machine: only the processors limit the transfer."""
    what = f"sockets: TLS: a peer sends a shard of 1 GiB within this machine, {os.cpu_count()} cores for both ends"
    yield Line(what, f"<= {BUDGET:.2f} x in clear", *_verdict(*compare()))


def over_network(_: argparse.Namespace) -> Iterator[Line]:
    """The same where a network limits the transfer."""
    what = f"sockets: TLS: a peer sends a shard of 1 GiB through {GBIT} Gbit/s"
    command = ["unshare", "-n", "sh", "-c", NETWORK, "sh", sys.executable, "-m", "benchmarks.hardening.tls", "--here"]
    if os.geteuid() or not shutil.which("tc"):
        yield Line(what, f"<= {BUDGET:.2f} x in clear", "not measured: it takes root and tc", False)
        return
    completed = subprocess.run(command, stdout=subprocess.PIPE, text=True, check=True)
    numbers = [float(word) for word in completed.stdout.split()]
    yield Line(what, f"<= {BUDGET:.2f} x in clear", *_verdict(Cost(*numbers[:2]), Cost(*numbers[2:])))


def handshakes(_: argparse.Namespace) -> Iterator[Line]:
    """New connections, each with one request."""
    with _both(MIB) as (clear, tls):
        for way in (clear, tls):
            way.shake_hands(20)
        costs = [way.shake_hands(HANDSHAKES).processor_s / HANDSHAKES * 1e3 for way in (clear, tls)]
    more = costs[1] - costs[0]
    measured_text = f"{more:.2f} ms: {costs[1]:.2f} ms a connection with a request, {costs[0]:.2f} ms in clear"
    yield Line("sockets: TLS: what a handshake costs a server's processor", "<= 2 ms", measured_text, more <= 2.0)


MEASURED: Mapping[str, Callable[[argparse.Namespace], Iterator[Line]]] = {
    "sockets: TLS: what a handshake costs": handshakes,
    "sockets: TLS: a peer sends a shard within this machine": on_loopback,
    "sockets: TLS: a peer sends a shard through a network": over_network,
}


def main() -> None:
    """Measure and print."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--here", action="store_true", help="only the numbers, on the network as it is")
    options = parse_options(parser, list(MEASURED))
    if options.here:
        clear, tls = compare()
        print(clear.seconds, clear.processor_s, tls.seconds, tls.processor_s)
        return
    judge(
        line for promise, measure in MEASURED.items() if is_asked(promise, options.words) for line in measure(options)
    )


if __name__ == "__main__":
    main()
