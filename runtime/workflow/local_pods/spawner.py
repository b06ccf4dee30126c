"""Starts pods for the launcher: a small process of its own, so that a start costs one fork of a small process.

Run as a file, with the standard library only; so it reads its start time itself (`processes.start_time` elsewhere).
Each request is a line of JSON on standard input (see `Pod.start_request`). The answer is a line on standard output: the
claim, a tab, and `started`, `late` (another process has the claim) or an error.
Between fork and exec the child takes the claim, makes the pod's root in a mount namespace and becomes the shell that
runs the command and records its exit code. It lives on when the launcher dies.

With `sandbox`, the pod runs in a sandbox: the process that has the claim stays outside, waits for the pod's own
first process, keeps its output and records its exit code.

`python spawner.py try SANDBOX` exits with 0 where the kernel allows such a pod.

`python spawner.py OWN FOLDER COMMAND...`, inside a pod, becomes that command, in that folder, as a container whose
volumes are only its own. OWN is JSON: `mounts`, {path: [what is bound there, read only]}, and `shut_in`.
"""

import ctypes
import fcntl
import glob
import json
import os
import signal
import socket
import struct
import sys
from typing import Any

CLONE_NEWNS, CLONE_NEWUSER = 0x00020000, 0x10000000
CLONE_NEWIPC, CLONE_NEWPID, CLONE_NEWNET = 0x08000000, 0x20000000, 0x40000000
MS_RDONLY, MS_REMOUNT, MS_BIND, MS_REC, MS_PRIVATE = 1, 32, 4096, 16384, 1 << 18
MNT_DETACH = 2
MS_NOSUID, MS_NODEV, MS_NOEXEC = 2, 4, 8
AT_FDCWD, AT_RECURSIVE, MOUNT_SETATTR, MOUNT_ATTR_RDONLY = -100, 0x8000, 442, 1
PR_SET_PDEATHSIG, PR_CAPBSET_DROP, PR_SET_NO_NEW_PRIVS, PR_CAP_AMBIENT, PR_CAP_AMBIENT_CLEAR_ALL = 1, 24, 38, 47, 4
SIOCSIFFLAGS, IFF_UP = 0x8914, 1
DEVICES = ("null", "zero", "full", "random", "urandom", "tty")
KERNEL_ENTRIES = ("sys", "irq", "bus", "fs", "sysrq-trigger")
"""Entries of /proc through which root could change the machine."""
SANDBOX_INIT = 'trap : TERM INT; "$@"; exit $?'
"""The first process of a sandbox."""
LOCKED_MOUNT_FLAGS = 2 | 4 | 8 | 1024 | 2048
"""Flags of a mount (nosuid, nodev, noexec, noatime, nodiratime) that a user namespace cannot take away."""
_RECORD_EXIT = """
trap : TERM INT
exit=$1; shift
tell() { until echo $1 2> /dev/null > "$2" || [ ! -d "${2%/*}" ]; do command -p sleep 1; done; }
"""
"""Records an exit code; on a full disk it waits for room, as long as the pod's folder exists."""
RUN_SCRIPT = f"""{_RECORD_EXIT}
"$@"
code=$?; tell $code "$exit"; exit $code
"""
RESULT_BYTES = 256 * 1024
"""The last bytes of a pod's output that are kept as its result; all of it goes to the log."""
CAPTURE_SCRIPT = f"""{_RECORD_EXIT}
{{ trap : TERM INT; "$@"; tell $? "$exit.code"; }} | (
  trap '' TERM INT
  command -p tee -a /dev/fd/3 | command -p tail -c {RESULT_BYTES} > "$exit.stdout"
) 3>&1
read -r code < "$exit.code"; tell $code "$exit"; exit $code
"""
_libc = ctypes.CDLL(None, use_errno=True)


def main() -> None:
    """Serve until standard input ends; with arguments, become a container."""
    if sys.argv[1:2] == ["try"]:
        _probe_sandbox(json.loads(sys.argv[2]))
    if len(sys.argv) > 1:
        _become_container(json.loads(sys.argv[1]), sys.argv[2], sys.argv[3:])
    signal.signal(signal.SIGCHLD, signal.SIG_IGN)
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    signal.signal(signal.SIGTERM, signal.SIG_IGN)
    for line in sys.stdin:
        if os.fork() == 0:
            _become_child(json.loads(line))


def _become_child(start: dict[str, Any]) -> None:
    """Become the pod. Never returns."""
    try:
        os.setsid()
        if not _claim(start["claim"]):
            _answer(start, "late")
            os._exit(0)
        for number in (signal.SIGCHLD, signal.SIGINT, signal.SIGTERM):
            signal.signal(number, signal.SIG_DFL)
        out = os.open(start["log"], os.O_WRONLY | os.O_CREAT | os.O_APPEND | os.O_NOFOLLOW, 0o644)
        if start["sandbox"]:
            _supervise_sandboxed(start, out)
        if start["namespace"]:
            _enter_root(start)
        os.chdir(start["cwd"])
        _answer(start, "started")
        os.dup2(os.open(os.devnull, os.O_RDONLY), 0)
        os.dup2(out, 1)
        os.dup2(out, 2)
        os.closerange(3, 64)
        shell = CAPTURE_SCRIPT if start["captures"] else RUN_SCRIPT
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
    """Take the pod's claim: pid and start time, linked into place. Only the first process can."""
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


def _enter_root(start: dict[str, Any]) -> None:
    """A mount namespace whose root is the pod's."""
    _unshare()
    _make_root(start)
    _pivot(start["root"])


def _make_root(start: dict[str, Any]) -> None:
    """Private folders, and in them the machine's files."""
    root = start["root"]
    _call_libc("mount", root.encode(), root.encode(), None, MS_BIND | MS_REC, None)
    for folder in start["folders"]:
        os.makedirs(root + folder, exist_ok=True)
    for link, target in start["links"].items():
        if not os.path.lexists(root + link):
            os.symlink(target, root + link)
    for path in start["binds"]:
        if not start["sandbox"]:
            _bind(path, root + path)
        elif path not in ("/dev", "/proc"):
            _bind(path, root + path)
            _set_read_only(root + path)
    if start["sandbox"]:
        _apply_views(start["sandbox"]["views"], root)
        _make_devices(root)
    _mount(start["mounts"], root)


def _pivot(root: str) -> None:
    os.chdir(root)
    _call_libc("pivot_root", b".", b".")
    _call_libc("umount2", b".", MNT_DETACH)
    os.chdir("/")


def _become_container(own: dict[str, Any], folder: str, command: list[str]) -> None:
    """Become the command, with its own mounts. Never returns."""
    try:
        _unshare()
        _mount(own["mounts"], "")
        if own["shut_in"]:
            _drop_privileges()
        os.chdir(folder)
        os.execvp(command[0], command)
    except OSError as error:
        print(f"{error.filename or 'container'}: {error.strerror}", file=sys.stderr, flush=True)
    os._exit(64)  # As Argo gives a container that cannot be started; so does `podrun`.


def _unshare() -> None:
    """Leave the machine's mount namespace for one of our own."""
    if _libc.unshare(CLONE_NEWNS):  # Root may, and so may the first process of a sandbox.
        _unshare_user(CLONE_NEWNS)
    _call_libc("mount", b"none", b"/", None, MS_REC | MS_PRIVATE, None)


def _unshare_user(more: int) -> None:
    """Enter a user namespace that maps only our own uid and gid, and `more` namespaces that it owns."""
    uid, gid = os.getuid(), os.getgid()
    _call_libc("unshare", CLONE_NEWUSER | more)
    for name, text in (("setgroups", "deny"), ("uid_map", f"{uid} {uid} 1"), ("gid_map", f"{gid} {gid} 1")):
        with open(f"/proc/self/{name}", "w") as file:
            file.write(text)


def _supervise_sandboxed(start: dict[str, Any], out: int) -> None:
    """From outside of the sandbox: start the pod, keep its output, record its exit code. Never returns."""
    for number in (signal.SIGINT, signal.SIGTERM):
        signal.signal(number, signal.SIG_IGN)  # They are the pod's: it is in our process group.
    began, beginning = os.pipe()
    captured_end, output = os.pipe() if start["captures"] else (-1, out)
    pod = os.fork()
    if pod == 0:
        _begin_pod(start, beginning, output)
    os.close(beginning)
    with os.fdopen(began) as errors:
        if why := errors.read():
            raise OSError(0, why)
    _answer(start, "started")
    if start["captures"]:
        os.close(output)
        _copy_output(captured_end, out, start["exit"] + ".stdout")
    code = os.waitstatus_to_exitcode(os.waitpid(pod, 0)[1])
    code = code if code >= 0 else 128 - code
    fresh = f"{start['exit']}.part"
    with open(fresh, "w") as file:
        file.write(f"{code}\n")
    os.replace(fresh, start["exit"])
    os._exit(code)


def _copy_output(source: int, out: int, path: str) -> None:
    """Copy the output to the log, and its last RESULT_BYTES to the file."""
    last = bytearray()
    while piece := os.read(source, 65536):
        last += piece
        del last[:-RESULT_BYTES]
        os.write(out, piece)
    with open(path, "wb") as capture_file:
        capture_file.write(last)


def _begin_pod(start: dict[str, Any], beginning: int, output: int) -> None:
    """Make the namespaces; the first process in them becomes the pod, and is waited for. Never returns.

    An error is written to `beginning`; the exec of the pod's first program closes it.
    """
    try:
        network = 0 if start["sandbox"]["network"] else CLONE_NEWNET
        _unshare_user(CLONE_NEWNS | CLONE_NEWPID | CLONE_NEWIPC | network)
        pod = os.fork()
        if pod == 0:
            _libc.prctl(PR_SET_PDEATHSIG, signal.SIGKILL, 0, 0, 0)
            _become_pod(start, output)
        os.close(beginning)
        code = os.waitstatus_to_exitcode(os.waitpid(pod, 0)[1])
        os._exit(code if code >= 0 else 128 - code)
    except (OSError, ValueError) as error:
        message = f"{error.filename or 'sandbox'}: {error.strerror}" if isinstance(error, OSError) else f"pod: {error}"
        os.write(beginning, message.encode(errors="replace"))
    finally:
        os._exit(1)


def _become_pod(start: dict[str, Any], output: int) -> None:
    """The first process of the pod's namespaces: make its root, let go of all privileges, become its program."""
    _call_libc("mount", b"none", b"/", None, MS_REC | MS_PRIVATE, None)
    if not start["sandbox"]["network"]:
        with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as own:
            fcntl.ioctl(own, SIOCSIFFLAGS, struct.pack("16sh", b"lo", IFF_UP))
    _make_root(start)
    _pivot(start["root"])
    if not start["sandbox"]["several"]:
        _drop_privileges()
    os.chdir(start["cwd"])
    os.dup2(os.open(os.devnull, os.O_RDONLY), 0)
    os.dup2(output, 1)
    os.dup2(output, 2)
    for number in (signal.SIGINT, signal.SIGTERM):
        signal.signal(number, signal.SIG_DFL)
    os.execve("/bin/sh", ["/bin/sh", "-c", SANDBOX_INIT, "pod", *start["command"]], start["environment"])


def _drop_privileges() -> None:
    """Drop all privileges, for this process and all programs that it executes."""
    _call_libc("prctl", PR_SET_NO_NEW_PRIVS, 1, 0, 0, 0)
    _call_libc("prctl", PR_CAP_AMBIENT, PR_CAP_AMBIENT_CLEAR_ALL, 0, 0, 0)
    for capability in range(64):
        if _libc.prctl(PR_CAPBSET_DROP, capability, 0, 0, 0):
            break


def _probe_sandbox(sandbox: dict[str, Any]) -> None:
    """Exit with 0 if a sandboxed pod can be made here. Never returns."""
    root = f"/tmp/everstep-try-{os.getpid()}"
    os.mkdir(root, 0o700)
    entries = [f"/{name}" for name in os.listdir("/")]
    links = {path: os.readlink(path) for path in entries if os.path.islink(path)}
    binds = [path for path in entries if path not in links]
    start = {"root": root, "folders": [], "links": links, "binds": binds, "mounts": {}, "cwd": "/", "captures": False,
             "sandbox": sandbox, "command": ["true"], "environment": {"PATH": os.defpath}}  # fmt: skip
    pod = os.fork()
    if pod == 0:
        _begin_pod(start, 2, 1)
    code = os.waitstatus_to_exitcode(os.waitpid(pod, 0)[1])
    for name in os.listdir(root):
        path = f"{root}/{name}"
        os.rmdir(path) if os.path.isdir(path) and not os.path.islink(path) else os.unlink(path)
    os.rmdir(root)
    os._exit(code)


def _apply_views(views: list[tuple[str, str]], root: str) -> None:
    """Hide paths of the machine, and show others again, outer ones first."""
    for path, kind in views:
        place = root + path
        if not os.path.exists(path) or (kind == "hidden" and not os.path.exists(place)):
            continue
        if kind != "hidden":
            _bind(path, place)
            if kind == "shown":
                _set_read_only(place)
        elif os.path.isdir(path):
            _call_libc("mount", b"none", place.encode(), b"tmpfs", MS_NOSUID | MS_NODEV, b"size=16m,mode=755")
        else:
            _call_libc("mount", b"/dev/null", place.encode(), None, MS_BIND, None)


def _make_devices(root: str) -> None:
    """The pod's own /proc, /dev and shared memory."""
    os.makedirs(f"{root}/proc", exist_ok=True)
    _call_libc("mount", b"proc", f"{root}/proc".encode(), b"proc", MS_NOSUID | MS_NODEV | MS_NOEXEC, None)
    for name in KERNEL_ENTRIES:
        path = f"{root}/proc/{name}"
        if os.path.exists(path):
            _bind(path, path)
            _set_read_only(path)
    os.makedirs(f"{root}/dev", exist_ok=True)
    _call_libc("mount", b"none", f"{root}/dev".encode(), b"tmpfs", MS_NOSUID | MS_NOEXEC, b"size=1m,mode=755")
    for path in [*(f"/dev/{name}" for name in DEVICES), *glob.glob("/dev/nvidia*"), *glob.glob("/dev/dri")]:
        if os.path.exists(path):
            _bind(path, root + path)
    os.symlink("/proc/self/fd", f"{root}/dev/fd")
    for number, name in enumerate(("stdin", "stdout", "stderr")):
        os.symlink(f"/proc/self/fd/{number}", f"{root}/dev/{name}")
    os.mkdir(f"{root}/dev/shm")
    _call_libc("mount", b"none", f"{root}/dev/shm".encode(), b"tmpfs", MS_NOSUID | MS_NODEV, b"mode=1777")


def _set_read_only(path: str) -> None:
    """Make the mount at `path` read-only, with all mounts below it."""
    attributes = (ctypes.c_uint64 * 4)(MOUNT_ATTR_RDONLY, 0, 0, 0)
    if _libc.syscall(MOUNT_SETATTR, AT_FDCWD, path.encode(), AT_RECURSIVE, ctypes.byref(attributes), 32):
        number = ctypes.get_errno()
        raise OSError(number, f"mount_setattr: {os.strerror(number)}", path)


def _mount(mounts: dict[str, tuple[str, bool]], root: str) -> None:
    """Bind the volumes, outer ones first."""
    for path, (source, read_only) in sorted(mounts.items()):
        _bind(source, root + path)
        if read_only:
            flags = MS_REMOUNT | MS_BIND | MS_RDONLY | (os.statvfs(root + path).f_flag & LOCKED_MOUNT_FLAGS)
            _call_libc("mount", b"none", (root + path).encode(), None, flags, None)


def _bind(path: str, place: str) -> None:
    if os.path.isdir(path):
        os.makedirs(place, exist_ok=True)
    elif not os.path.exists(place):
        os.makedirs(os.path.dirname(place), exist_ok=True)
        os.close(os.open(place, os.O_WRONLY | os.O_CREAT, 0o644))
    _call_libc("mount", path.encode(), place.encode(), None, MS_BIND | MS_REC, None)


def _call_libc(name: str, *arguments: Any) -> None:
    if getattr(_libc, name)(*arguments) != 0:
        number = ctypes.get_errno()
        raise OSError(number, f"{name}: {os.strerror(number)}")


if __name__ == "__main__":
    main()
