"""`python -m everstep.prepare_once TEXT SHELL -c COMMAND...`: runs a command once its node is prepared.

TEXT is for the same shell: it writes files, say. One worker of the node runs it, and the others wait. Then each becomes
the command, in the folder and with the variables that the text has left. Workers that start again run it again, but
only when no other of the node is running: nobody reads a file that is being written. Nodes that are processes of one
machine have the same files, so they are prepared together. In TEXT, `RANK` is the node's.
"""

import json
import os
import re
import shlex
import subprocess
import sys
from collections.abc import Mapping, Sequence
from hashlib import sha256
from pathlib import Path
from typing import NoReturn

from everstep.runtime.exit_codes import ExitCode
from everstep.runtime.protocol.worker_link import AGENT_VARIABLE
from everstep.runtime.system import atomic
from everstep.runtime.system.file_lock import hold_lock, lock

_LEAVE = "import json, os, sys; json.dump([os.getcwd(), dict(os.environ)], open(sys.argv[1], 'w'))"
"""What the text's shell becomes at its end."""
_OPEN = os.O_RDWR | os.O_CREAT
_TEXT_OPTION = re.compile(r"-\w*c")
_OF_SHELL = ("_", "SHLVL")
"""Variables that each shell sets by itself."""


def main(words: Sequence[str]) -> int:
    """Become the command; returns an exit code if that cannot be."""
    text, *command = words or [""]
    place = next((number for number, word in enumerate(command[:-1], 1) if _TEXT_OPTION.fullmatch(word)), 0)
    if not place:
        return _refuse("no command of a shell; write python -m everstep.prepare_once TEXT SHELL -c COMMAND")
    if AGENT_VARIABLE not in os.environ:
        return _refuse(f"{AGENT_VARIABLE} is not set; a worker of a train step, or of everstep launch, runs it")
    try:
        folder = _shared_folder(os.environ)
        name = _digest([text, *command[:place], *command[place + 1 :]])
        result = folder / f"{name}.json"
        running = os.open(folder / f"{name}.running", _OPEN)
        with hold_lock(folder / f"{name}.lock", _OPEN):
            # Invariant: while a command runs, `running` is shared, the text is not run, and its result is complete.
            if not _share_result(running, result) and (code := _prepare(text, command, place, result)):
                return code
            lock(running, is_shared=True)
        _become(command, result, running)
    except OSError as error:
        return _refuse(f"{error.filename or command[0]}: {error.strerror}", 127)


def _shared_folder(environment: Mapping[str, str]) -> Path:
    """Of all who share the files: the nodes of a run on this machine, or the workers of a pod."""
    if run := environment.get("EVERSTEP_RUN_DIR"):
        folder = Path(run, "jobs", f"{environment.get('EVERSTEP_JOB', '')}.prepared")
    else:
        folder = Path(environment[AGENT_VARIABLE]).parent / "prepared"
    folder.mkdir(mode=0o700, parents=True, exist_ok=True)  # A result may have secrets.
    return folder


def _digest(words: Sequence[str]) -> str:
    """What distinguishes a preparation from those of other roles."""
    return sha256("\0".join(words).encode(errors="surrogateescape")).hexdigest()[:16]


def _share_result(running: int, result: Path) -> bool:
    """Whether somebody runs with that result, which is then shared; else `running` is locked for this process alone."""
    try:
        lock(running, wait_s=0)
        return False
    except BlockingIOError:
        lock(running, is_shared=True)  # A preparer that was killed may hold it for another moment.
    if result.exists():
        return True
    lock(running)
    return False


def _prepare(text: str, command: Sequence[str], place: int, result: Path) -> int:
    """Run the text and write what it leaves. Returns its exit code. Raises OSError."""
    rank = os.environ.get("GROUP_RANK", "0")
    before = {**os.environ, "RANK": rank, "NODE_RANK": rank}
    left = result.with_suffix(".left")
    for path in (result, left):
        path.unlink(missing_ok=True)
    leave = shlex.join([sys.executable, "-I", "-c", _LEAVE, str(left)])
    words = [*command[:place], f"set -a\n{text}\nexec {leave}", *command[place + 1 :]]
    if code := subprocess.run(words, env=before, check=False).returncode:
        return code if code > 0 else 128 - code
    if not left.exists():
        return _refuse("the text ends its shell, so the command is not reached; leave out its exit or exec")
    folder, after = json.loads(left.read_text())
    left.unlink()
    names = {*before, *after} - {*_OF_SHELL}
    changes = {name: after.get(name) for name in names if before.get(name) != after.get(name)}
    atomic.replace(result, json.dumps([folder, changes]))
    return 0


def _become(command: Sequence[str], result: Path, running: int) -> NoReturn:
    """Run the command in the place of this process; the lock stays. Raises OSError."""
    folder, changes = json.loads(result.read_text())
    os.chdir(folder)
    kept = {name: value for name, value in os.environ.items() if name not in changes}
    os.set_inheritable(running, True)
    os.execvpe(command[0], [*command], kept | {name: value for name, value in changes.items() if value is not None})


def _refuse(reason: str, code: int = ExitCode.BAD_INPUT) -> int:
    print(f"everstep.prepare_once: {reason}", file=sys.stderr)
    return code


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
