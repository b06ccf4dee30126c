"""Rank 0 waits for the end of a message of which the half is sent when rank 1 dies, or releases its group while torch's
own thread waits for that: `send|receive|release DONE_FILE`."""

import fcntl
import os
import signal
import subprocess
import sys
import termios
import threading
import time
from contextlib import suppress
from datetime import timedelta
from pathlib import Path

import psutil
import torch
import torch.distributed as dist

from everstep import gloo_waits, group_sockets
from everstep.gloo_waits import GlooWaits
from everstep.group_sockets import GroupSockets
from everstep.process_group import join
from tests.harness import wait_until

TIMEOUT_S, LOOK_S = 60.0, 0.001
TENSOR = torch.ones(1 << 25)
"""Far more than the kernel takes at once."""
SMALL_BYTES = 1 << 16
"""More than this, not taken by a peer's kernel, is of the tensor."""
WORD = torch.ones(1)
"""Whoever has it has also read what was said before."""


def has_ended(process: psutil.Process) -> bool:
    """Is it gone, or not waited for yet?"""
    try:
        return process.status() == psutil.STATUS_ZOMBIE
    except psutil.NoSuchProcess:
        return True


def waits_in_gloo() -> bool:
    """Does torch's thread wait at a buffer of gloo?"""
    gloo = gloo_waits._Gloo.find()
    assert gloo is not None
    return any(
        gloo.buffer_around(gloo_waits._first_argument(call)) is not None for _, call in gloo_waits._sleeping_threads()
    )


def most_bytes(sockets: GroupSockets, queue: int) -> int:
    """The longest of the groups' queues in the kernel: TIOCOUTQ to be sent, FIONREAD to be read."""
    lengths = [0]
    for inode, file in group_sockets._sockets().items():
        if inode in sockets._inodes:
            with suppress(OSError):
                lengths.append(int.from_bytes(fcntl.ioctl(file, queue, bytes(4)), sys.byteorder))
    return max(lengths)


def be_sent_a_half(collective: bool) -> None:
    """Stop before the message comes; what is not waited for is not sent."""
    if collective:
        dist.broadcast(TENSOR, 0, async_op=True)
        wait_until(waits_in_gloo, "torch's thread in gloo", TIMEOUT_S, LOOK_S)
    else:
        dist.irecv(TENSOR, 0)
    dist.send(WORD, 0, tag=1)
    os.kill(os.getpid(), signal.SIGSTOP)


def send_a_half(peer: psutil.Process) -> None:
    """Die with the message's begin in the kernels, to a rank that is stopped: it would read on while this one dies."""
    dist.recv(WORD, 0, tag=1)
    wait_until(lambda: peer.status() == psutil.STATUS_STOPPED, "the peer to stop", TIMEOUT_S, LOOK_S)
    dist.isend(TENSOR, 0)
    os.kill(os.getpid(), signal.SIGKILL)


def begin_sending(sockets: GroupSockets, peer: psutil.Process, collective: bool) -> dist.Work | None:
    """To a rank that takes no more than its kernel does, and dies."""
    dist.recv(WORD, 1, tag=1)
    wait_until(lambda: peer.status() == psutil.STATUS_STOPPED, "the peer to stop", TIMEOUT_S, LOOK_S)
    if collective:
        work = dist.broadcast(TENSOR, 0, async_op=True)
        wait_until(
            lambda: most_bytes(sockets, termios.TIOCOUTQ) > SMALL_BYTES, "bytes that nobody takes", TIMEOUT_S, LOOK_S
        )
    else:
        work = dist.isend(TENSOR, 1)
    peer.kill()
    return work


def begin_receiving(peer: psutil.Process) -> dist.Work | None:
    """From a rank that dies at once. Stop until it has."""
    work = dist.irecv(TENSOR, 1)
    wakes = f"while kill -0 {peer.pid} 2>/dev/null; do sleep {LOOK_S}; done; kill -CONT {os.getpid()}"
    subprocess.Popen(["sh", "-c", wakes])
    dist.send(WORD, 1, tag=1)
    os.kill(os.getpid(), signal.SIGSTOP)
    return work


def main() -> None:
    """Write how many waits had to be ended, and what was raised."""
    direction, done_path = sys.argv[1], Path(sys.argv[2])
    threading.Timer(TIMEOUT_S, lambda: os._exit(9)).start()
    sockets = GroupSockets()
    rank = int(os.environ["RANK"])
    join(rank, "gloo", timedelta(seconds=2 * TIMEOUT_S), sockets)
    store = dist.distributed_c10d._get_default_store()
    store.set(str(rank), str(os.getpid()))
    peer = psutil.Process(int(store.get(str(1 - rank))))
    if rank == 1:
        send_a_half(peer) if direction == "receive" else be_sent_a_half(direction == "release")
    work = begin_receiving(peer) if direction == "receive" else begin_sending(sockets, peer, direction == "release")
    assert work is not None
    ended = 0

    def end_waits() -> None:
        nonlocal ended
        waits = GlooWaits()
        wait_until(
            lambda: has_ended(peer) and not most_bytes(sockets, termios.FIONREAD), "the peer's end", TIMEOUT_S, LOOK_S
        )
        sockets.cut()
        while not ended:
            if sockets.cut_is_seen():
                ended = waits.end_forgotten()
            time.sleep(0.001)

    thread = threading.Thread(target=end_waits, daemon=True)
    thread.start()
    try:
        if direction == "release":
            del work
            dist.destroy_process_group()
        else:
            work.wait()
        raised = "nothing"
    except RuntimeError as error:
        raised = str(error)
    thread.join(TIMEOUT_S)
    done_path.write_text(f"{ended} {raised}")
    os._exit(0)


if __name__ == "__main__":
    main()
