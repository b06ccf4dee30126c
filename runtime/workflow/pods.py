"""Pods as processes of this machine: started under a small shell that records the exit code, found again after a crash.

Each pod has a /tmp of its own: a folder of the run, bound over /tmp in a mount namespace. What below /tmp the pod is
told by a path stays visible in it. Where the kernel allows no namespaces, output paths below /tmp are rewritten in
the pod's command instead.
"""

import os
import shlex
import shutil
import signal
import subprocess
from collections.abc import Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from functools import lru_cache
from pathlib import Path
from typing import Any

MARK = "EVERSTEP_POD"
_MISSING = "wait: Error (exit code 64): open /var/run/argo/outputs"
"""How Argo tells of an output that is not there."""
TMP = Path("/tmp")
_RECORD = (
    'trap : TERM INT; exit=$1; shift; "$@"; code=$?; echo $code > "$exit.part" && mv "$exit.part" "$exit"; exit $code'
)


class PodError(OSError):
    """The pod could not be started or its outputs not be read."""


@dataclass(frozen=True)
class Pod:
    """A place for one pod: `folder` is runs/NAME/pods/ID."""

    folder: Path
    log: Path

    @property
    def tmp(self) -> Path:
        """What the pod sees as /tmp."""
        return self.folder / "tmp"

    @property
    def exit_file(self) -> Path:
        """Has the exit code once the command is over."""
        return self.folder / "exit"

    def start(
        self, container: Mapping[str, Any], outputs: Sequence[str], environment: Mapping[str, str], cwd: Path
    ) -> subprocess.Popen[bytes]:
        """Run the command in a session of its own. Raises PodError when it cannot be started."""
        shutil.rmtree(self.folder, ignore_errors=True)
        self.tmp.mkdir(parents=True)
        self.log.parent.mkdir(parents=True, exist_ok=True)
        for path in outputs:
            self.inside(path).parent.mkdir(parents=True, exist_ok=True)
        command = [str(word) for word in [*container["command"], *(container.get("args") or [])]]
        own = {str(v["name"]): str(v.get("value") or "") for v in container.get("env") or []}
        if not any(Path(folder, command[0]).exists() for folder in environment["PATH"].split(":")):
            raise PodError(f"{command[0]}: no such command on this machine (images are not used here)")
        told = {**environment, **own, MARK: str(self.folder)}
        with self.log.open("ab") as log:
            return subprocess.Popen(
                ["/bin/sh", "-c", _RECORD, "pod", str(self.exit_file), *self._isolated(command, outputs, cwd)],
                cwd=cwd, env=told, stdin=subprocess.DEVNULL, stdout=log, stderr=log, start_new_session=True,
            )  # fmt: skip

    def _isolated(self, command: Sequence[str], outputs: Sequence[str], cwd: Path) -> list[str]:
        unshare = mount_namespace()
        if not unshare:
            folders = sorted({str(Path(path).parent) for path in outputs if TMP in Path(path).parents})
            return [_rewritten(word, folders, self.tmp) for word in command]
        lines = []
        for name in sorted(_host_names([*command, str(cwd), str(self.folder)])):
            (self.tmp / name).mkdir(parents=True, exist_ok=True)
            lines.append(f"mount --rbind {shlex.quote(str(TMP / name))} {shlex.quote(str(self.tmp / name))}")
        lines += [f"mount --rbind {shlex.quote(str(self.tmp))} /tmp", 'exec "$@"']
        return [*unshare, "/bin/sh", "-c", " && ".join(lines), "pod", *command]

    def inside(self, path: str) -> Path:
        """Where this machine finds what the pod calls `path`."""
        given = Path(path)
        place = self.tmp / given.relative_to(TMP) if TMP in given.parents else given
        if place.is_symlink() and (target := os.readlink(place)).startswith("/tmp/"):
            return self.inside(target)
        return place

    def exit_code(self) -> int | None:
        """The recorded exit code; None when the pod vanished without one."""
        try:
            return int(self.exit_file.read_text())
        except (FileNotFoundError, ValueError):
            return None

    def collect(self, outputs: Mapping[str, Any]) -> tuple[dict[str, str], dict[str, str], str]:
        """(output parameters, places of output artifacts, why one is missing)."""
        parameters: dict[str, str] = {}
        artifacts: dict[str, str] = {}
        missing = ""
        for entry in outputs.get("parameters") or []:
            source = entry.get("valueFrom") or {}
            try:
                text = self.inside(source["path"]).read_bytes().decode(errors="replace")
                parameters[entry["name"]] = text.removesuffix("\n")
            except OSError:
                if "default" in source:
                    parameters[entry["name"]] = str(source["default"]).removesuffix("\n")
                else:
                    missing = missing or f"{_MISSING}/parameters{source.get('path')}: no such file or directory"
        for entry in outputs.get("artifacts") or []:
            place = self.inside(entry["path"])
            if place.exists():
                artifacts[entry["name"]] = str(place)
            elif not entry.get("optional"):
                missing = missing or f"{_MISSING}/artifacts{entry['path']}: no such file or directory"
        return parameters, artifacts, missing

    def find(self) -> tuple[int, int] | None:
        """(pid, start time) of a process of this pod that runs, whoever started it: the first of its session."""
        wanted = f"{MARK}={self.folder}".encode()
        for entry in Path("/proc").iterdir():
            if entry.name.isdigit():
                with suppress(OSError):
                    pid = int(entry.name)
                    ours = os.getsid(pid) == pid and wanted in (entry / "environ").read_bytes().split(b"\0")
                    if ours and (entry / "cmdline").read_bytes().split(b"\0")[0] == b"/bin/sh":
                        return pid, start_time(pid)
        return None


def start_time(pid: int) -> int:
    """Ticks since boot at which the process began (proc(5), stat, field 22); 0 when there is none, or a zombie."""
    try:
        fields = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
    except OSError:
        return 0
    return 0 if fields[0] == "Z" else int(fields[19])


def send(pid: int, began: int, signum: signal.Signals) -> None:
    """Signal the pod's session, if it is still that process."""
    if start_time(pid) == began:
        with suppress(ProcessLookupError):
            os.killpg(pid, signum)


@lru_cache(maxsize=1)
def mount_namespace() -> tuple[str, ...]:
    """The command that gives a mount namespace in which we may bind; empty where the kernel allows none."""
    for flags in (("-m",), ("-Urm",)):
        words = ("unshare", *flags, "--propagation", "private")
        try:
            tried = subprocess.run([*words, "mount", "--bind", "/tmp", "/tmp"], capture_output=True, check=False)
        except FileNotFoundError:
            return ()
        if tried.returncode == 0:
            return words
    return ()


def _host_names(words: Sequence[str]) -> set[str]:
    """First components below /tmp of the paths that these words name, where they exist on the machine."""
    found = set()
    for word in words:
        for piece in word.replace("=", " ").replace(",", " ").split():
            if piece.startswith("/tmp/") and (name := piece.split("/")[2]) and (TMP / name).is_dir():
                found.add(name)
    return found


def _rewritten(word: str, folders: Sequence[str], tmp: Path) -> str:
    for folder in folders:
        word = word.replace(folder, str(tmp / Path(folder).relative_to(TMP)))
    return word
