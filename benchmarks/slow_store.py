"""What a store costs that is far, errs or throttles: real S3 servers behind a wire that misbehaves.

    python -m benchmarks.slow_store --servers minio seaweedfs

Each line: a server and what its wire does; how long the probe at opening, a create (the journal's segment), a read of
it, and a put and a get of 64 MiB (a shard) take, medians of a few; how many requests had trouble.
"""

import argparse
import os
import random
import statistics
import tempfile
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from everstep.runtime.store import open_store
from tests import minio, seaweedfs
from tests.minio import MinIO
from tests.store.wire import Plan, Trouble, calm, through

SERVERS = {"minio": minio, "seaweedfs": seaweedfs}
FAR, FAR_S = "50 ms away", 0.05
ERRORS, PER_S = 0.05, 5.0
SHARD_BYTES = 64 << 20
CREATES, PUTS = 20, 3


def erring(chance: random.Random) -> Plan:
    """One request in twenty fails: refused, cut, cut after it was done, or 500."""
    kinds = (Trouble.BUSY, Trouble.RESET, Trouble.SILENT, Trouble.BROKEN)
    return lambda *_: chance.choice(kinds) if chance.random() < ERRORS else Trouble.NONE


def throttling(clock: Callable[[], float] = time.monotonic) -> Plan:
    """5 requests a second are served, 5 at once at the most; others are answered 503 SlowDown."""
    lock, bucket = threading.Lock(), [PER_S, clock()]

    def plan(*_: str) -> Trouble:
        with lock:
            now = clock()
            bucket[:] = min(PER_S, bucket[0] + (now - bucket[1]) * PER_S), now
            if bucket[0] < 1:
                return Trouble.BUSY
            bucket[0] -= 1
            return Trouble.NONE

    return plan


WIRES: dict[str, Callable[[], Plan]] = {
    "as it is": lambda: calm,
    FAR: lambda: calm,
    "5 % errors": lambda: erring(random.Random(0)),
    "5 requests/s": throttling,
}


@contextmanager
def _with_endpoint(server: MinIO, endpoint: str) -> Iterator[None]:
    before = dict(os.environ)
    os.environ.update({**server.environment, "MINIO_ENDPOINT": endpoint})
    try:
        yield
    finally:
        os.environ.clear()
        os.environ.update(before)


def _seconds(call: Callable[[], Any]) -> float:
    began = time.perf_counter()
    call()
    return time.perf_counter() - began


def measure(server: MinIO, plan: Plan, delay_s: float) -> tuple[list[float], int]:
    """([opening, create, read, put, get] in seconds, requests that had trouble)."""
    shard = memoryview(bytearray(random.Random(0).randbytes(1 << 20) * (SHARD_BYTES >> 20)))
    with through(server.endpoint, plan) as wire, _with_endpoint(server, wire.endpoint):
        wire.delay_s = delay_s
        uri = server.new_prefix()
        opening = _seconds(lambda: open_store(uri))
        store = open_store(uri)
        creates = [_seconds(lambda n=n: store.create(f"segment-{n:06d}", b"x" * 2000)) for n in range(CREATES)]
        reads = [_seconds(lambda n=n: store.get(f"segment-{n:06d}")) for n in range(CREATES)]
        puts = [_seconds(lambda n=n: store.put(f"shard-{n}", shard)) for n in range(PUTS)]
        into = memoryview(bytearray(SHARD_BYTES))
        gets = [_seconds(lambda n=n: store.read_into(f"shard-{n}", 0, into)) for n in range(PUTS)]
        assert into == shard, "what is read is what was put"
        bad = sum(count for trouble, count in wire.suffered.items() if trouble is not Trouble.NONE)
    return [opening, *map(statistics.median, (creates, reads, puts, gets))], bad


def main() -> None:
    """Measure each server behind each wire and print the table."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--servers", nargs="+", choices=SERVERS, default=list(SERVERS))
    options = parser.parse_args()
    print("| server | wire | opening | create | read | put 64 MiB | get 64 MiB | requests with trouble |")
    print("|---|---|---|---|---|---|---|---|")
    for name in options.servers:
        with (
            tempfile.TemporaryDirectory(prefix="everstep-slow-") as folder,
            SERVERS[name].running(Path(folder)) as server,
        ):
            for wire, plan in WIRES.items():
                seconds, bad = measure(server, plan(), FAR_S if wire == FAR else 0.0)
                cells = [f"{1000 * value_s:.0f} ms" if value_s < 1 else f"{value_s:.1f} s" for value_s in seconds]
                print(f"| {name} | {wire} | {' | '.join(cells)} | {bad} |", flush=True)


if __name__ == "__main__":
    main()
