"""How the job's `ssh` connects: `ssh_connection.py HOST PORT`, after ssh_config(5), ProxyCommand with ProxyUseFdpass.

A launcher may be faster than a host's server, and gives up a host that it does not reach. ssh's own ConnectionAttempts
would try a machine that is gone as often as a server that is late. Standard library only, as it starts for each login.
"""

import socket
import sys
import time

_WAIT_S = 60.0
"""For a server that does not listen yet, and for a machine that does not answer."""
_PAUSE_S = 0.2
_MEND = "let each of its nodes run python -m everstep.ssh_server, and nothing between the nodes close that port"


def main(host: str, port: str) -> int:
    """Connect and hand the connection to ssh; returns the exit code."""
    deadline = time.monotonic() + _WAIT_S
    while True:
        try:
            connection = socket.create_connection((host, int(port)), timeout=max(deadline - time.monotonic(), _PAUSE_S))
            break
        except OSError as error:
            if not isinstance(error, ConnectionRefusedError) or time.monotonic() > deadline:
                print(f"everstep: no ssh server at {host}, port {port} ({error}); {_MEND}", file=sys.stderr)
                return 1
        time.sleep(_PAUSE_S)
    connection.settimeout(None)
    with connection, socket.socket(fileno=sys.stdout.fileno()) as ssh:
        socket.send_fds(ssh, [b"\0"], [connection.fileno()])
    return 0


if __name__ == "__main__":
    sys.exit(main(*sys.argv[1:]))
