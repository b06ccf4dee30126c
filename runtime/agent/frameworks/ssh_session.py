"""What a host's ssh server runs at each login: the client's command, which ends with the connection.

Without a terminal, sshd leaves a command alone when its client is gone. Processes of a launcher that was killed would
then train beside those of the next one. Standard library only: sshd runs this file with none of the job's variables.
"""

import ctypes
import os
import signal
import subprocess
import sys
from pathlib import Path

_PR_SET_PDEATHSIG = 1


def main() -> int:
    """Run SSH_ORIGINAL_COMMAND; returns its exit code. All of it is killed when sshd's process of this login ends."""
    signal.signal(signal.SIGTERM, lambda *_: os.killpg(0, signal.SIGKILL))
    ctypes.CDLL(None).prctl(_PR_SET_PDEATHSIG, signal.SIGTERM)
    if not Path(f"/proc/{os.getppid()}/comm").read_text().startswith("sshd"):
        return 1  # It had ended before.
    code = subprocess.call(["/bin/sh", "-c", os.environ.get("SSH_ORIGINAL_COMMAND", "exit 0")])
    return code if code >= 0 else 128 - code


if __name__ == "__main__":
    sys.exit(main())
