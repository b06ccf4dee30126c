"""Starts pods for the launcher: a small process of its own, so that a start costs one fork of a small process.

Run as a file, with the standard library only. Each request is a line of JSON on standard input (`Pod.request`); the
answer is a line on standard output: the claim, a tab, and `started`, `late` (somebody else has it) or what is wrong.
Between fork and exec the child takes the claim, makes the pod's root in a mount namespace and becomes the shell that
runs the command and records its exit code. It lives on when the launcher dies.

`python spawner.py MOUNTS FOLDER COMMAND...`, inside a pod, becomes that command, in that folder, as a container whose
volumes are only its own. MOUNTS is JSON: {path: [what is bound there, read only]}.
"""

import ctypes
import json
import os
import signal
import sys
from typing import Any

CLONE_NEWNS, CLONE_NEWUSER = 0x00020000, 0x10000000
MS_RDONLY, MS_REMOUNT, MS_BIND, MS_REC, MS_PRIVATE = 1, 32, 4096, 16384, 1 << 18
MNT_DETACH = 2
LOCKED = 2 | 4 | 8 | 1024 | 2048
"""Flags of a mount (nosuid, nodev, noexec, noatime, nodiratime) that a user namespace cannot take away."""
RUN = """
trap : TERM INT
exit=$1; shift
"$@"
code=$?; echo $code > "$exit"; exit $code
"""
CAPTURE = """
trap : TERM INT
exit=$1; shift
{ trap : TERM INT; "$@"; echo $? > "$exit.code"; } | command -p tee "$exit.stdout"
read -r code < "$exit.code"; echo $code > "$exit"; exit $code
"""
_libc = ctypes.CDLL(None, use_errno=True)


def main() -> None:
    """Serve until standard input ends; with arguments, become a container."""
    if len(sys.argv) > 1:
        _contain(json.loads(sys.argv[1]), sys.argv[2], sys.argv[3:])
    signal.signal(signal.SIGCHLD, signal.SIG_IGN)
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    signal.signal(signal.SIGTERM, signal.SIG_IGN)
    for line in sys.stdin:
        if os.fork() == 0:
            _child(json.loads(line))


def _child(start: dict[str, Any]) -> None:
    """Become the pod. Never returns."""
    try:
        os.setsid()
        if not _claim(start["claim"]):
            _answer(start, "late")
            os._exit(0)
        for number in (signal.SIGCHLD, signal.SIGINT, signal.SIGTERM):
            signal.signal(number, signal.SIG_DFL)
        out = os.open(start["log"], os.O_WRONLY | os.O_CREAT | os.O_APPEND, 0o644)
        if start["namespace"]:
            _enter(start)
        os.chdir(start["cwd"])
        _answer(start, "started")
        os.dup2(os.open(os.devnull, os.O_RDONLY), 0)
        os.dup2(out, 1)
        os.dup2(out, 2)
        os.closerange(3, 64)
        shell = CAPTURE if start["captures"] else RUN
        os.execve("/bin/sh", ["/bin/sh", "-c", shell, "pod", start["exit"], *start["command"]], start["environment"])
    except OSError as error:
        _answer(start, f"{error.filename or 'pod'}: {error.strerror}")
    except ValueError as error:  # A zero byte in an argument or a variable.
        _answer(start, f"pod: {error}")
    finally:
        os._exit(1)


def _answer(start: dict[str, Any], text: str) -> None:
    os.write(1, f"{start['claim']}\t{text}\n".encode())


def _claim(path: str) -> bool:
    """Say who runs this pod: pid and start time, linked into place; only the first can."""
    with open("/proc/self/stat") as stat:
        began = stat.read().rpartition(")")[2].split()[19]
    own = f"{path}.{os.getpid()}"
    with open(own, "w") as file:
        file.write(f"{os.getpid()} {began}\n")
    try:
        os.link(own, path)
    except FileExistsError:
        return False
    finally:
        os.unlink(own)
    return True


def _enter(start: dict[str, Any]) -> None:
    """A mount namespace whose root is the pod's."""
    root = start["root"]
    _unshare()
    _call("mount", root.encode(), root.encode(), None, MS_BIND | MS_REC, None)
    for folder in start["folders"]:
        os.makedirs(root + folder, exist_ok=True)
    for link, target in start["links"].items():
        if not os.path.lexists(root + link):
            os.symlink(target, root + link)
    for path in start["binds"]:
        _bind(path, root + path)
    _mount(start["mounts"], root)
    os.chdir(root)
    _call("pivot_root", b".", b".")
    _call("umount2", b".", MNT_DETACH)
    os.chdir("/")


def _contain(mounts: dict[str, tuple[str, bool]], folder: str, command: list[str]) -> None:
    """Become the command, with those mounts. Never returns."""
    try:
        _unshare()
        _mount(mounts, "")
        os.chdir(folder)
        os.execvp(command[0], command)
    except OSError as error:
        print(f"{error.filename or 'container'}: {error.strerror}", file=sys.stderr, flush=True)
    os._exit(1)


def _unshare() -> None:
    """Mounts of our own from here on."""
    uid, gid = os.getuid(), os.getgid()
    if uid == 0:
        _call("unshare", CLONE_NEWNS)
    else:
        _call("unshare", CLONE_NEWNS | CLONE_NEWUSER)
        for name, text in (("setgroups", "deny"), ("uid_map", f"{uid} {uid} 1"), ("gid_map", f"{gid} {gid} 1")):
            with open(f"/proc/self/{name}", "w") as file:
                file.write(text)
    _call("mount", b"none", b"/", None, MS_REC | MS_PRIVATE, None)


def _mount(mounts: dict[str, tuple[str, bool]], root: str) -> None:
    """Outer ones first."""
    for path, (source, read_only) in sorted(mounts.items()):
        _bind(source, root + path)
        if read_only:
            flags = MS_REMOUNT | MS_BIND | MS_RDONLY | (os.statvfs(root + path).f_flag & LOCKED)
            _call("mount", b"none", (root + path).encode(), None, flags, None)


def _bind(path: str, place: str) -> None:
    if os.path.isdir(path):
        os.makedirs(place, exist_ok=True)
    elif not os.path.exists(place):
        os.makedirs(os.path.dirname(place), exist_ok=True)
        os.close(os.open(place, os.O_WRONLY | os.O_CREAT, 0o644))
    _call("mount", path.encode(), place.encode(), None, MS_BIND | MS_REC, None)


def _call(name: str, *arguments: Any) -> None:
    if getattr(_libc, name)(*arguments) != 0:
        number = ctypes.get_errno()
        raise OSError(number, f"{name}: {os.strerror(number)}")


if __name__ == "__main__":
    main()
