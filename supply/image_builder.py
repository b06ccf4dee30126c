"""Follows a Containerfile here, without a registry: its FROM is a root file system that Debian's own tool makes.

Each stage is one layer of an overlay file system. Every process of a stage has mount and process namespaces of its
own, in which all its mounts are made: whatever ends it, none is left behind.
"""

import os
import re
import shlex
import shutil
import subprocess
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path

from supply.containerfile import ContainerfileError, Instruction, Settings, Stage, ignore_rule, settings

DEBIAN = re.compile(r"debian:([a-z]+)-slim@sha256:\w+")
BASE = "debian:bookworm-slim@sha256:none"
"""What the images begin with here. It is made of Debian's packages, not fetched from a registry: it has no digest."""
SLIM = ("/usr/share/doc/*", "/usr/share/man/*", "/usr/share/info/*", "/usr/share/locale/*")
"""What Debian's slim images leave out of every package, but for COPYRIGHT."""
COPYRIGHT = "/usr/share/doc/*/copyright"
"""The packages' licences, which an image that is passed on must carry."""
PATH = "/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin"
PASSED_ON = ("http_proxy", "https_proxy", "no_proxy", "HTTP_PROXY", "HTTPS_PROXY", "NO_PROXY", "PIP_INDEX_URL")
"""Variables of whoever builds that an instruction sees, too: how to reach the network."""
CERTIFICATES = "/run/certificates.crt"
FROM_THE_HOST = ("/etc/hosts", "/etc/resolv.conf")
BUILD_S = 3600
SHARED = "/shared"
ROOM, ROOM_WITHOUT_TORCH = 16 << 30, 4 << 30
"""Bytes of disk for all images of ours at a time: torch's packages are 7 GB, and are fetched as 3 more."""
DEVICES = {"null": "1 3", "zero": "1 5", "full": "1 7", "random": "1 8", "urandom": "1 9", "tty": "5 0"}
"""Character devices of every container: name, and the numbers that the kernel knows it by."""


def missing(folder: Path, room: int = ROOM) -> str:
    """Why images cannot be made in that folder; empty when they can."""
    if os.geteuid():
        return "no images here: only root makes a root file system"
    if shutil.which("mmdebstrap") is None:
        return "no images here: mmdebstrap is not installed (apt-get install mmdebstrap)"
    if shutil.disk_usage(folder).free < room:
        return f"no images here: {folder} has less than {room >> 30} GiB of disk left"
    for name in ("below", "above", "work", "probe"):
        (folder / name).mkdir(exist_ok=True)
    options = f"lowerdir={folder}/below,upperdir={folder}/above,workdir={folder}/work"
    probe = _run_to_end(_in_namespaces([f"mount -t overlay overlay -o {options} {folder}/probe"], ["true"]))
    return f"no images here: {probe.text.strip()}" if probe.code else ""


@dataclass(frozen=True)
class ProcessEnd:
    """A process of a stage that has ended: its code and all that it printed."""

    code: int
    text: str


@dataclass(frozen=True)
class Mount:
    """What a process sees at `target` of its root: a folder or file of this machine."""

    source: str
    target: str
    how: str = "ro"

    def lines(self) -> list[str]:
        """Of a shell that has the process's root in $root."""
        source, place = shlex.quote(self.source), f'"$root"{shlex.quote(self.target)}'
        return [
            f"if [ -d {source} ]; then mkdir -p {place}; else touch {place}; fi",
            f"mount --bind {source} {place}",
            f"mount -o remount,bind,{self.how} {place}",
        ]


@dataclass
class Builder:
    """Builds stages in `folder`, with the files of `context`; packages that pip fetches are kept in `cache`."""

    folder: Path
    cache: Path
    context: Path
    stages: dict[str, Stage]
    built: set[str] = field(default_factory=set)

    def build(self, name: str) -> None:
        """Make that stage, after those that it needs; one that is made is kept. Raises ContainerfileError."""
        if name in self.built:
            return
        shutil.rmtree(self._layer(name).parent, ignore_errors=True)
        self._layer(name).parent.mkdir()
        if name in self.stages:
            self._follow(self.stages[name])
        else:
            self._debian(name)
        self.built.add(name)

    def run(self, name: str, words: Sequence[str], shared_folder: Path | None = None) -> ProcessEnd:
        """Run these words in that stage as its user. What it writes is lost, but in `shared_folder`: it sees it as
        SHARED."""
        scratch_folder = self.folder / "lost"
        scratch_folder.mkdir(exist_ok=True)
        lines = [f"mount -t tmpfs lost {scratch_folder}", f"mkdir {scratch_folder}/layer"]
        lines += self._overlay(self.layers(name), "root", scratch_folder / "layer")
        mounts = [Mount(str(shared_folder), SHARED, "rw")] if shared_folder else []
        return self._process(lines, settings(self.stages, name), words, mounts)

    def _follow(self, stage: Stage) -> None:
        """Its instructions, in their order."""
        needed_stages = [stage.base, *(instruction.flag("from") for instruction in stage.instructions)]
        needed_stages += [mount.get("from", "") for instruction in stage.instructions for mount in instruction.mounts()]
        for name in filter(None, needed_stages):
            self.build(name)
        self._layer(stage.name).mkdir()
        base_settings = settings(self.stages, stage.base) if stage.base in self.stages else Settings()
        for instruction in stage.instructions:
            if base_settings.after(instruction):
                continue
            if instruction.verb == "COPY":
                self._copy(stage.name, instruction)
            else:
                self._follow_run(stage.name, base_settings, instruction)

    def _follow_run(self, name: str, base_settings: Settings, instruction: Instruction) -> None:
        """Follow one RUN. Raises ContainerfileError with what it said."""
        lines, mounts, build_arguments = [], [], dict(base_settings.arguments)
        for mount in instruction.mounts():
            if mount["type"] == "cache":
                self.cache.mkdir(parents=True, exist_ok=True)
                mounts.append(Mount(str(self.cache), mount["target"], "rw"))
            elif mount["type"] == "bind" and mount.get("from") and not lines:
                lines += self._overlay(self.layers(mount["from"]), "other")
                mounts.append(Mount(f"{self.folder}/other{mount['source']}", mount["target"]))
            else:
                raise ContainerfileError(f"RUN --mount={mount}: only type=cache, and once type=bind with from")
        build_arguments |= {name: os.environ[name] for name in PASSED_ON if name in os.environ}
        if own := os.environ.get("PIP_CERT") or os.environ.get("SSL_CERT_FILE"):
            mounts.append(Mount(own, CERTIFICATES))
            build_arguments["PIP_CERT"] = CERTIFICATES
        lines += self._overlay(self.layers(name)[1:], "root", self._layer(name))
        outcome = self._process(lines, base_settings, ["/bin/sh", "-c", instruction.rest], mounts, build_arguments)
        if outcome.code:
            raise ContainerfileError(
                f"{name}: RUN {instruction.rest}: ended with {outcome.code}:\n{outcome.text[-4000:]}"
            )

    def _copy(self, name: str, instruction: Instruction) -> None:
        """Follow one COPY: of folders the content, owned by root. Raises ContainerfileError for what is not there."""
        *sources, target = shlex.split(instruction.rest)
        origin = instruction.flag("from")
        origin_folder, root = f"{self.folder}/other" if origin else str(self._visible_context()), f"{self.folder}/root"
        script = [
            f"for source in {shlex.join(f'{origin_folder}/{source}' for source in sources)}; do",
            f'target={shlex.quote(root + target)}; [ -d "$source" ] && source=$source/. && target=$target/',
            'mkdir -p "${target%/*}"; cp --archive --no-preserve=ownership "$source" "$target"; done',
        ]
        lines = self._overlay(self.layers(origin), "other") if origin else []
        lines += self._overlay(self.layers(name)[1:], "root", self._layer(name))
        outcome = _run_to_end(_in_namespaces([*lines, *script], ["true"]))
        if outcome.code:
            raise ContainerfileError(f"{name}: COPY {instruction.rest}: {outcome.text}")

    def _visible_context(self) -> Path:
        """What of the context a builder may see."""
        context_folder = self.folder / "context"
        if not context_folder.exists():
            out = ignore_rule((self.context / ".dockerignore").read_text())
            for path in self.context.rglob("*"):
                place = path.relative_to(self.context).as_posix()
                if (path.is_symlink() or path.is_file()) and not out(place):  # A builder copies links as links.
                    (context_folder / place).parent.mkdir(parents=True, exist_ok=True)
                    shutil.copy2(path, context_folder / place, follow_symlinks=False)
        return context_folder

    def _debian(self, image: str) -> None:
        """The packages that Debian calls required, and apt: a little less than its slim image has."""
        suite = DEBIAN.fullmatch(image)
        if suite is None:
            raise ContainerfileError(f"FROM {image}: only debian:SUITE-slim@sha256:... can be made here")
        left_out = [f"--dpkgopt=path-exclude={path}" for path in SLIM]
        left_out.append(f"--dpkgopt=path-include={COPYRIGHT}")
        command = ["mmdebstrap", "--quiet", "--variant=minbase", *left_out, suite[1], str(self._layer(image))]
        completed = subprocess.run(command, capture_output=True, text=True, timeout=BUILD_S, check=False)
        if completed.returncode:
            raise ContainerfileError(f"FROM {image}: {completed.stderr[-2000:]}")
        shutil.rmtree(self._layer(image) / "dev")  # Each container gets its own; nobody but root may unpack devices.
        (self._layer(image) / "dev").mkdir()

    def _layer(self, name: str) -> Path:
        return self.folder / re.sub("[:@]", "-", name) / "layer"

    def layers(self, name: str) -> list[str]:
        """Those that a stage consists of, the uppermost first."""
        layers = [str(self._layer(name))]
        while name in self.stages:
            name = self.stages[name].base
            layers.append(str(self._layer(name)))
        return layers

    def _overlay(self, layers: Sequence[str], at: str, upper: Path | None = None) -> list[str]:
        """Lines of a shell that mount these layers there, then its $root; what is written there goes to `upper`."""
        options = f"lowerdir={':'.join(layers)}"
        lines = [f"root={shlex.quote(f'{self.folder}/{at}')}", 'mkdir -p "$root"']
        if upper:
            lines.append(f"mkdir -p {upper.parent}/work")
            options += f",upperdir={upper},workdir={upper.parent}/work,redirect_dir=off,metacopy=off"  # Whole files.
        return [*lines, f'mount -t overlay overlay -o {options} "$root"']

    def _process(
        self,
        lines: Sequence[str],
        base_settings: Settings,
        words: Sequence[str],
        mounts: Sequence[Mount],
        build_arguments: Mapping[str, str] = {},
    ) -> ProcessEnd:
        """Run these words in what the lines have mounted, as the settings say."""
        for mount in (*(Mount(name, name) for name in FROM_THE_HOST), *mounts):
            lines = [*lines, *mount.lines()]
        environment = {"PATH": PATH, **build_arguments, **base_settings.environment}
        inside = [
            "env",
            "-i",
            f"--chdir={base_settings.folder}",
            *(f"{name}={value}" for name, value in environment.items()),
        ]
        chroot = ["chroot", f"--userspec={base_settings.user}", "--groups=", f"{self.folder}/root", *inside, *words]
        lines = [*lines, f'mkdir -p "$root"{shlex.quote(base_settings.folder)}', *_as_in_a_container()]
        return _run_to_end(_in_namespaces(lines, chroot))


def _as_in_a_container() -> list[str]:
    """Lines of a shell that mount what every container has under $root: /proc, /sys, /dev, /dev/shm."""
    lines = [
        'mount -t proc proc "$root"/proc',
        'mount --rbind /sys "$root"/sys',
        'mount -t tmpfs -o mode=755 dev "$root"/dev',
        'mkdir "$root"/dev/shm; mount -t tmpfs -o mode=1777,size=1g shm "$root"/dev/shm',
        'ln -s /proc/self/fd "$root"/dev/fd',
        'ln -s /proc/self/fd/0 "$root"/dev/stdin; ln -s /proc/self/fd/1 "$root"/dev/stdout',
        'ln -s /proc/self/fd/2 "$root"/dev/stderr',
    ]
    return lines + [f'mknod -m 666 "$root"/dev/{name} c {numbers}' for name, numbers in DEVICES.items()]


def _in_namespaces(lines: Sequence[str], last: Sequence[str]) -> list[str]:
    script = "\n".join(["set -eu", *lines, f"exec {shlex.join(last)}"])
    return ["unshare", "--mount", "--pid", "--fork", "--kill-child", "--", "/bin/sh", "-c", script]


def _run_to_end(command: Sequence[str]) -> ProcessEnd:
    """Run it to its end. Raises subprocess.TimeoutExpired; nothing of it is left then, either."""
    process = subprocess.run(
        command, stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True,
        errors="replace", timeout=BUILD_S, check=False,
    )  # fmt: skip
    return ProcessEnd(process.returncode, process.stdout)
