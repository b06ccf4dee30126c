"""One node's part of the check, on the command line as a pod runs it."""

import json
import socket
import subprocess
import sys


def test_two_processes_check_each_other_over_a_store_of_rank_0() -> None:
    with socket.create_server(("127.0.0.1", 0)) as listener:
        port = listener.getsockname()[1]
    common = [sys.executable, "-m", "runtime.diagnosis.check", "--world=2", f"--store=127.0.0.1:{port}"]
    both = [
        subprocess.Popen([*common, f"--rank={rank}", f"--node=n{rank}"], stdout=subprocess.PIPE, text=True)
        for rank in range(2)
    ]
    for rank, process in enumerate(both):
        told = json.loads(process.communicate(timeout=120)[0].splitlines()[-1])
        assert process.returncode == 0
        assert told["node"] == f"n{rank}"
        assert 0 < told["all_reduce_s"] < 3600
