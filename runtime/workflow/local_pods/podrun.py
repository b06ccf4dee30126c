"""Runs the containers of one pod inside it: init containers in turn, then main ones as their dependencies allow.

Sidecars run beside them. `python podrun.py SPEC REPORT`, with the standard library only; its exit code is main's.

SPEC is JSON: `init`, `main`, `sidecars`, each a list of {name, command, environment, cwd, dependencies, mounts};
`retries` and `wait_s` of a containerSet; `capture`, a file for the last `capture_bytes` of main's standard output, all
of which goes to the log; `shut_in`, in a sandbox. The mounts of a container are its own: `spawner` binds them. REPORT
gets [[name, code, blamed], ...]. The loop that keeps the last bytes of an output stands in `spawner`, too: neither
program can import the other.
"""

import json
import os
import signal
import subprocess
import sys
import threading
import time
from typing import Any

GRACE_S = 30.0
NEVER_RAN = 64
_stopping = threading.Event()


def main() -> None:
    """Run the pod to its end."""
    signal.signal(signal.SIGTERM, lambda *_: _stopping.set())
    with open(sys.argv[1]) as file:
        spec = json.load(file)
    sidecar_ends: list[tuple[str, int, str]] = []
    code = _run(spec, sidecar_ends)
    fresh = sys.argv[2] + ".part"
    with open(fresh, "w") as file:
        json.dump(sidecar_ends, file)
    os.replace(fresh, sys.argv[2])
    os._exit(code)


def _run(spec: dict[str, Any], sidecar_ends: list[tuple[str, int, str]]) -> int:
    for container in spec["init"]:
        code = _wait(_start(container, spec["shut_in"]))
        sidecar_ends.append((container["name"], code, ""))
        if code or _stopping.is_set():
            return code
    sidecars = [(container["name"], _start(container, spec["shut_in"])) for container in spec["sidecars"]]
    codes: dict[str, tuple[int, str]] = {}
    lock = threading.Condition()
    threads = [threading.Thread(target=_run_main, args=(spec, container, codes, lock)) for container in spec["main"]]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    sidecar_ends += [(container["name"], *codes[container["name"]]) for container in spec["main"]]
    sidecar_ends += _end_sidecars(sidecars)
    return codes.get("main", next(iter(codes.values())))[0]


def _run_main(
    spec: dict[str, Any], container: dict[str, Any], codes: dict[str, tuple[int, str]], lock: threading.Condition
) -> None:
    """Run one main container after its dependencies, with the retries of the set's retryStrategy."""
    needs = container["dependencies"]
    with lock:
        lock.wait_for(lambda: all(need in codes for need in needs))
        failed_need = next((need for need in needs if codes[need][0]), None)
    outcome = (NEVER_RAN, failed_need) if failed_need else (0, "")
    if not failed_need:
        for attempt in range(spec["retries"] + 1):
            outcome = (_run_once(spec, container), "")
            if not outcome[0] or _stopping.is_set() or attempt == spec["retries"]:
                break
            time.sleep(spec["wait_s"])
    with lock:
        codes[container["name"]] = outcome
        lock.notify_all()


def _run_once(spec: dict[str, Any], container: dict[str, Any]) -> int:
    if container["name"] != "main" or not spec["capture"]:
        return _wait(_start(container, spec["shut_in"]))
    process = _start(container, spec["shut_in"], stdout=subprocess.PIPE)
    if process is None:
        return NEVER_RAN
    assert process.stdout is not None
    last = bytearray()
    while piece := os.read(process.stdout.fileno(), 65536):
        last += piece
        del last[: -spec["capture_bytes"]]
        os.write(1, piece)
    with open(spec["capture"], "wb") as capture_file:
        capture_file.write(last)
    return _wait(process)


def _start(container: dict[str, Any], shut_in: bool, stdout: int | None = None) -> "subprocess.Popen[bytes] | None":
    """Start a container. None, and one line in the log, where it cannot be: it ends with NEVER_RAN, as on Argo."""
    command, folder = container["command"], container["cwd"]
    if container["mounts"] or shut_in:
        program = os.path.join(os.path.dirname(__file__), "spawner.py")
        command = [
            sys.executable,
            "-I",
            "-S",
            program,
            json.dumps({"mounts": container["mounts"], "shut_in": shut_in}),
            folder,
            *command,
        ]
        folder = None  # The folder may be in a volume, which `spawner` binds first.
    try:
        return subprocess.Popen(
            command, env=container["environment"], cwd=folder, stdin=subprocess.DEVNULL, stdout=stdout
        )
    except OSError as error:  # Its program is not there in the pod, or is none, or its arguments are too long.
        why = f"{error.filename or command[0]}: {error.strerror}"
    except ValueError as error:  # A zero byte in an argument or a variable.
        why = str(error)
    print(f"{container['name']}: failed to start command: {why}", file=sys.stderr, flush=True)
    return None


def _wait(process: "subprocess.Popen[bytes] | None") -> int:
    return NEVER_RAN if process is None else _exit_code(process.wait())


def _exit_code(status: int) -> int:
    return 128 - status if status < 0 else status


def _end_sidecars(sidecars: list[tuple[str, "subprocess.Popen[bytes] | None"]]) -> list[tuple[str, int, str]]:
    """End the sidecars: SIGTERM, then SIGKILL after GRACE_S. Returns their reports."""
    for _, process in sidecars:
        if process is not None and process.poll() is None:
            process.terminate()
    until = time.monotonic() + GRACE_S
    endings = []
    for name, process in sidecars:
        if process is not None:
            try:
                process.wait(max(0.0, until - time.monotonic()))
            except subprocess.TimeoutExpired:
                process.kill()
        endings.append((name, _wait(process), ""))
    return endings


if __name__ == "__main__":
    main()
