"""Pods as processes of this machine: started under a small shell that records the exit code, found again after a crash.

Each pod has a /tmp of its own: a folder of the run, bound over /tmp in a mount namespace. What below /tmp the pod is
told by a path stays visible in it. Where the kernel allows no namespaces, output paths below /tmp are rewritten in
the pod's command instead.
"""

import json
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
from typing import Any, NamedTuple

from runtime.workflow.expressions.values import parameter_text
from runtime.workflow.fields import listed

MARK = "EVERSTEP_POD"
TMP = Path("/tmp")
NOT_STARTED = 64
"""Exit code of a container whose command is not there, or whose output is a directory, as Argo's emissary gives it."""
RESULT_BYTES = 256 * 1024
OUTPUTS = "/var/run/argo/outputs"
"""Where Argo keeps outputs on their way; its messages name it."""
_WRAPPER = """
trap : TERM INT
claim=$1 exit=$2; shift 2
read -r line < /proc/$$/stat; set -- $$ ${line##*) } -- "$@"
echo "$1 ${21}" > "$claim.$1" && command -p ln "$claim.$1" "$claim" 2>/dev/null || exit 0
exec < /dev/null
while [ "$1" != -- ]; do shift; done; shift
"$@"
code=$?; echo $code > "$exit.part" && command -p mv "$exit.part" "$exit"; exit $code
"""
_CAPTURING = _WRAPPER.replace(
    '"$@"\ncode=$?;',
    '{ trap : TERM INT; "$@"; echo $? > "$exit.code"; } | command -p tee "$exit.stdout"\nread -r code < "$exit.code";',
)
"""Only the process whose claim is linked runs the command; who comes later, or is late itself, leaves. Its standard
input is closed when that is decided."""


class PodError(OSError):
    """The pod could not be started or its outputs not be read."""


class Collected(NamedTuple):
    """What a pod left behind."""

    parameters: dict[str, str]
    artifacts: dict[str, str]
    """Where each output artifact lies."""
    said: str = ""
    """Why the container counts as failed with 64 although its command did not."""
    missing: str = ""
    """Which outputs are not there, in the words of Argo's wait container."""


@dataclass(frozen=True)
class Pod:
    """A place for one pod: `folder` is runs/NAME/pods/ID. It is started at most once, whoever tries."""

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
        self, template: Mapping[str, Any], environment: Mapping[str, str], cwd: Path, captures: bool = False
    ) -> tuple[int, int]:
        """Run the command in a session of its own: (pid, start time) of the process that has the claim.

        `captures`: keep its standard output for `result`.

        Started before, by a launcher that died, it is that one. Raises PodError when it cannot be started.
        """
        if found := self.claimed():
            return found
        container = template.get("container") or template["script"]
        command = [str(word) for word in [*(container.get("command") or []), *(container.get("args") or [])]]
        own = {str(v["name"]): str(v.get("value") or "") for v in container.get("env") or []}
        told = {**environment, **own, MARK: str(self.folder)}
        if shutil.which(command[0], path=told.get("PATH")) is None:
            raise PodError(_not_found(command[0]))
        self.tmp.mkdir(parents=True, exist_ok=True)
        self.log.parent.mkdir(parents=True, exist_ok=True)
        outputs = [str(entry["valueFrom"]["path"]) for entry in listed(template, "outputs", "parameters")]
        outputs += [str(entry["path"]) for entry in listed(template, "outputs", "artifacts")]
        for path in outputs:
            self.inside(path).parent.mkdir(parents=True, exist_ok=True)
        if template.get("script"):
            command.append(str(self._script(template["script"])))
        decided, undecided = os.pipe()
        try:
            with self.log.open("ab") as log:
                process = subprocess.Popen(
                    ["/bin/sh", "-c", _CAPTURING if captures else _WRAPPER, "pod", str(self._claim),
                     str(self.exit_file),
                     *self._isolated(command, outputs, cwd)],
                    cwd=cwd, env=told, stdin=undecided, stdout=log, stderr=log, start_new_session=True,
                )  # fmt: skip
        finally:
            os.close(undecided)
        with os.fdopen(decided, "rb") as waiting:
            waiting.read()
        found = self.claimed()
        if found is None:
            raise PodError(f"{self._claim}: cannot be written")
        if found[0] != process.pid:
            process.wait()
        return found

    def _script(self, script: Mapping[str, Any]) -> Path:
        path = self.folder / "script"
        path.write_text(str(script.get("source") or ""))
        return path

    def result(self) -> str:
        """Its standard output as `outputs.result`: the last 256 KiB, without one newline at the end."""
        try:
            text = (self.folder / "exit.stdout").read_bytes()[-RESULT_BYTES:].decode(errors="replace")
        except FileNotFoundError:
            return ""
        return text.removesuffix("\n")

    @property
    def _claim(self) -> Path:
        return self.folder / "claim"

    def claimed(self) -> tuple[int, int] | None:
        """(pid, start time) of the process that ran or runs the command; None before there is one."""
        try:
            pid, began = self._claim.read_text().split()
        except FileNotFoundError:
            return None
        return int(pid), int(began)

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

    def collect(self, outputs: Mapping[str, Any]) -> Collected:
        """Output parameters up to the first that is not there, and the artifacts that are."""
        found = Collected({}, {})
        gone, folders = [], []
        for entry in outputs.get("parameters") or []:
            source = entry.get("valueFrom") or {}
            place = self.inside(source["path"])
            if place.is_dir():
                folders.append(_directory(source["path"]))
                found.parameters[entry["name"]] = ""
                continue
            try:
                text = place.read_bytes().decode(errors="replace")
            except OSError:
                if "default" not in source:
                    gone.append(f"open {OUTPUTS}/parameters{source['path']}: no such file or directory")
                    break
                text = parameter_text(source["default"])
            found.parameters[entry["name"]] = text.removesuffix("\n")
        absent = ""
        for entry in outputs.get("artifacts") or []:
            place = self.inside(entry["path"])
            if place.exists():
                found.artifacts[entry["name"]] = str(place)
            elif not entry.get("optional"):
                absent += f"open {OUTPUTS}/artifacts{entry['path']}.tgz: no such file or directory; "
        missing = next(iter(gone), absent)
        return found._replace(
            said=folders[0] if folders else "", missing=f"wait: Error (exit code 64): {missing}" if missing else ""
        )


def _directory(path: str) -> str:
    kept = f"{OUTPUTS}/parameters/{path}"
    return f"failed to copy {path} to {kept}: write {kept}: copy_file_range: is a directory"


def _not_found(command: str) -> str:
    if "/" in command:
        return f"failed to find name in PATH: exec: {json.dumps(command)}: stat {command}: no such file or directory"
    return f"failed to find name in PATH: exec: {json.dumps(command)}: executable file not found in $PATH"


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
