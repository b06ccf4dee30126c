"""`python -m everstep.keep_running COMMAND...`: runs a command that outlives rounds.

For programs that follow a change of membership by themselves, such as an elastic launcher that reads
EVERSTEP_DISCOVERY_SCRIPT again and again, or a server. When a round is over, the command goes on; it keeps the
variables that it was started with. When it ends, this worker ends with the same exit code or signal.
"""

import os
import shutil
import signal
import subprocess
import sys
import threading
from contextlib import suppress
from typing import IO

from everstep.runtime.exit_codes import ExitCode
from everstep.runtime.protocol.survivor_link import LastIteration, Left, NextRound, RoundEnded, Seated, SurvivorLink

_CHUNK = 1 << 16


def main(command: list[str]) -> int:
    """Run the command to its end; returns its exit code."""
    if not command:
        print("everstep.keep_running: no command; write python -m everstep.keep_running COMMAND", file=sys.stderr)
        return ExitCode.BAD_INPUT
    if shutil.which(command[0]) is None:
        print(f"everstep.keep_running: {command[0]}: no such program", file=sys.stderr)
        return 127
    link = SurvivorLink.from_environment()
    child = subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE)
    for signum in (signal.SIGTERM, signal.SIGINT):
        signal.signal(signum, lambda signum, _: child.send_signal(signum))
    copies = [threading.Thread(target=_copy, args=pair) for pair in ((child.stdout, 1), (child.stderr, 2))]
    for copy in copies:
        copy.start()
    if link is not None:
        threading.Thread(target=_follow_rounds, args=(link,), daemon=True).start()
    code = child.wait()
    for copy in copies:
        copy.join()
    if code < 0:  # Its end is ours, also to whoever asks why: a kill for lack of memory is a kill.
        with suppress(OSError):  # Nobody can catch SIGKILL.
            signal.signal(-code, signal.SIG_DFL)
        os.kill(os.getpid(), -code)
    return code


def _copy(source: IO[bytes], stream: int) -> None:
    """Its output goes through here: each round has other streams."""
    while chunk := os.read(source.fileno(), _CHUNK):
        os.write(stream, chunk)


def _follow_rounds(link: SurvivorLink) -> None:
    """Leave each round that is over at once, and take the seat in the next one."""
    while received_message := link.receive():
        message, files = received_message
        match message:
            case LastIteration(round_) | RoundEnded(round_):
                link.send(Left(round_))
            case NextRound(round_):
                for stream, file in enumerate(files, start=1):
                    os.dup2(file, stream)
                    os.close(file)
                link.send(Seated(round_))


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
