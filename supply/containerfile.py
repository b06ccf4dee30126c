"""A Containerfile as data: the part of its grammar that ours uses; anything else is refused by name."""

import json
import re
import shlex
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field


class ContainerfileError(ValueError):
    """The file says something that is not understood here; tells the instruction."""


@dataclass(frozen=True)
class Instruction:
    """One instruction: its verb in capitals, its `--name=value` flags, and the rest as it is written."""

    verb: str
    flags: tuple[tuple[str, str], ...]
    rest: str

    def flag(self, name: str) -> str:
        """The value of a flag that is given at most once; empty when it is not."""
        return dict(self.flags).get(name, "")

    def mounts(self) -> list[dict[str, str]]:
        """The keys and values of each `--mount`."""
        return [dict(re.findall(r"(\w+)=([^,]*)", value)) for name, value in self.flags if name == "mount"]


@dataclass
class Stage:
    """One `FROM`: the image or stage it begins with, and its instructions."""

    name: str
    base: str
    instructions: list[Instruction] = field(default_factory=list)


@dataclass
class Settings:
    """What a stage's instructions say of the processes that are run in it."""

    environment: dict[str, str] = field(default_factory=dict)
    arguments: dict[str, str] = field(default_factory=dict)
    """Which its instructions see, but no process of the image."""
    folder: str = "/"
    user: str = "0:0"
    entrypoint: list[str] = field(default_factory=list)

    def after(self, instruction: Instruction) -> bool:
        """Follow an instruction that changes no file; False for one that does. Raises ContainerfileError."""
        if instruction.verb == "ENV":
            pairs = [word.partition("=") for word in shlex.split(instruction.rest)]
            if any(not equals or "$" in value for _, equals, value in pairs):
                raise ContainerfileError(f"ENV {instruction.rest}: only NAME=VALUE without variables")
            self.environment |= {name: value for name, _, value in pairs}
        elif instruction.verb == "ARG":
            self.arguments |= dict([instruction.rest.split("=", 1)])
        elif instruction.verb == "USER":
            if not re.fullmatch(r"\d+:\d+", instruction.rest):
                raise ContainerfileError(f"USER {instruction.rest}: only UID:GID, which Kubernetes can compare with 0")
            self.user = instruction.rest
        elif instruction.verb == "ENTRYPOINT":
            self.entrypoint = json.loads(instruction.rest)
        elif instruction.verb == "WORKDIR":
            self.folder = instruction.rest
        elif instruction.verb in ("RUN", "COPY"):
            return False
        else:
            raise ContainerfileError(f"{instruction.verb}: not known here")
        return True


def stages(text: str, arguments: Mapping[str, str] = {}) -> dict[str, Stage]:
    """The stages by name, in their order, with these build arguments.

    Raises ContainerfileError for a stage without a name and an argument without a value.
    """
    stages: dict[str, Stage] = {}
    lines = "\n".join(line for line in text.splitlines() if not line.lstrip().startswith("#"))
    for line in filter(None, map(str.strip, re.sub(r"\\\n", "", lines).splitlines())):
        verb, _, rest = line.partition(" ")
        if verb == "ARG":
            if rest not in arguments:
                raise ContainerfileError(f"ARG {rest}: give --build-arg {rest}=...")
            rest = f"{rest}={arguments[rest]}"
        if verb == "FROM":
            base, _, name = re.sub(r"\$\{(\w+)}", lambda ref: arguments.get(ref[1], ""), rest).partition(" AS ")
            if not base or not name or name in stages:
                raise ContainerfileError(f"{line}: each stage has a base and a name of its own")
            stages[name] = Stage(name, base)
            continue
        if verb == "ARG" and not stages:
            continue
        flags = []
        while flag := re.match(r"\s*--(\w+)=(\S+)\s+", rest):
            flags.append((flag[1], flag[2]))
            rest = rest[flag.end() :]
        list(stages.values())[-1].instructions.append(Instruction(verb, tuple(flags), rest.strip()))
    return stages


def settings(of: dict[str, Stage], name: str) -> Settings:
    """What holds at the end of that stage, with what it has from the stages below it. Raises ContainerfileError."""
    base = of[name].base
    stage_settings = settings(of, base) if base in of else Settings()
    for instruction in of[name].instructions:
        stage_settings.after(instruction)
    return stage_settings


def ignore_rule(patterns: str) -> Callable[[str], bool]:
    """Whether a .dockerignore with these lines keeps a path from the builder: the last line that fits decides."""
    rules = [
        (not line.startswith("!"), _pattern(line.removeprefix("!").strip("/")))
        for line in map(str.strip, patterns.splitlines())
        if line and not line.startswith("#")
    ]

    def decide(path: str) -> bool:
        parts = path.split("/")
        above = ["/".join(parts[:length]) for length in range(1, len(parts) + 1)]
        decisions = [out for out, pattern in rules if any(pattern.fullmatch(prefix) for prefix in above)]
        return decisions[-1] if decisions else False

    return decide


def _pattern(line: str) -> re.Pattern[str]:
    """`*` is any name or part of one, `**/` any folders or none."""
    parts = re.split(r"(\*\*/|\*)", line)
    return re.compile("".join({"**/": "(?:.*/)?", "*": "[^/]*"}.get(part, re.escape(part)) for part in parts))
