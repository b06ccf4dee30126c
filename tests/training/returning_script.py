"""A survivor whose function is done in its second round: `returning_script.py OUT HOW`.

It writes in which rounds it was entered, and what its agent has heard. HOW is `returns`, `exits`, or `swallows`: it
returns also when round 1 ends.
"""

import os
import socket
import sys
import tempfile
import threading
from contextlib import suppress
from pathlib import Path

import everstep
from everstep.runtime.protocol.survivor_link import (
    LARGEST_PACKET,
    SOCKET_NAME,
    NextRound,
    RoundEnded,
    Survive,
    SurvivorLink,
    decode_from_worker,
    encode,
)
from everstep.session import RoundOver

ENTERED: list[int] = []
is_inside = threading.Event()


def answer(listener: socket.socket, heard: list[str]) -> None:
    """The agent: it ends round 1, and gives a seat in round 2. A thread."""
    channel, _ = listener.accept()
    while packet := channel.recv(LARGEST_PACKET):
        message = decode_from_worker(packet)
        heard.append(type(message).__name__)
        if heard[-1] == "Survive":
            assert is_inside.wait(60), "the function was not entered"
            channel.send(encode(RoundEnded(1)))
        if heard[-1] == "Left":
            files = [os.dup(1), os.dup(2)]
            socket.send_fds(channel, [encode(NextRound(2, {"EVERSTEP_ROUND": "2"}, True))], files)


@everstep.main
def main(job: everstep.Context) -> None:
    """Waits for the end of round 1; ends in round 2."""
    ENTERED.append(int(os.environ["EVERSTEP_ROUND"]))
    try:
        is_inside.set()
        while ENTERED == [1]:
            threading.Event().wait(0.01)
    except RoundOver:
        if sys.argv[2] != "swallows":
            raise
    if sys.argv[2] == "exits":
        sys.exit(0)


if __name__ == "__main__":
    with tempfile.TemporaryDirectory() as folder, socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET) as listener:
        listener.bind(os.path.join(folder, SOCKET_NAME))
        listener.listen()
        heard: list[str] = []
        agent = threading.Thread(target=answer, args=(listener, heard))
        agent.start()
        os.environ["EVERSTEP_ROUND"] = "1"
        link = SurvivorLink(listener.getsockname(), Survive(os.getpid(), 1))
        SurvivorLink.from_environment = classmethod(lambda cls: link)  # type: ignore[method-assign]
        with suppress(SystemExit):
            main()
        agent.join()  # Until the worker has ended the connection.
        Path(sys.argv[1]).write_text(f"{ENTERED} {heard}")
