"""From a container's command to a training script: what launchers (`everstep.convert.launchers`) and `python` start.

The train step's agent takes the launcher's place, so the launcher's flags become the step's arguments.
"""

import posixpath
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

from everstep.convert.field_reader import number_in
from everstep.convert.launchers import DIALECTS
from everstep.convert.launchers.dialect import DEVICES, MODULE, NO_PYTHON, SLOTS, Dialect, Translation
from everstep.convert.launchers.torchrun import CHECKS
from everstep.convert.shell import (
    ShellStart,
    fill_in,
    for_agent,
    has_mask,
    is_assignment,
    is_filled_in,
    is_plain,
    mask_substitutions,
    names_in,
    of_worker,
    place_of_text,
    read_start,
    split_commands,
    split_output,
    split_plain,
    split_words,
    split_writing,
)

_STARTERS = (
    *(" ".join(words) for dialect in DIALECTS for words in dialect.commands),
    "horovodrun",
    "mpirun",
    "mpiexec",
)
_MODULES = tuple(module for dialect in DIALECTS for module in dialect.modules)
_STARTER = re.compile(
    r"(?:(?:^|[;&|(\n]|\s-\w*c\s['\"]?|(?<![\w-])(?:exec|env|nohup|time|then|else|do|run)\s)\s*(?:\w+=\S*\s+)*(?:\S*/)?"
    rf"({'|'.join(map(re.escape, _STARTERS))})|\s-m\s+({'|'.join(map(re.escape, _MODULES))}))(?=[ \t\\])"
)
"""At the beginning of a command of a shell's text, or of a program's words."""
_COUNTS = {
    SLOTS: "workers_per_node", "max_restarts": "max_restarts", "min_bandwidth": "min_bandwidth",
    "min_channels": "min_channels",
}  # fmt: skip
_OF_SIZE = re.compile(r"\$\{?(WORLD_SIZE|PET_NNODES)\}?")
"""As the number of nodes: all that the job has."""
_BOX_PAIRS = re.compile(r"\d+:\d+( \d+:\d+)*")
_FLAG = re.compile(r"-[^\d.]")
"""No flag has such a word for its value, unless it stands behind `=`."""
_BEFORE = ("exec", "env")
"""Words that a shell's command may begin with, which change nothing in what it starts."""
_RENDEZVOUS = ("node_rank", "rdzv_backend", "rdzv_endpoint", "rdzv_id", "master_addr", "master_port", "standalone")
"""Flags that say where the nodes meet, which the train step decides."""
_PATHS = "PYTHONPATH"
_PREPARE = ("python", "-m", "everstep.prepare_once")
CONF = "rdzv_conf"
"""The flag with the rendezvous' settings."""


@dataclass(frozen=True)
class Launch:
    """What a command starts on each worker."""

    program: tuple[str, ...]
    """Of one worker, without the launcher."""
    flags: dict[str, str] = field(default_factory=dict)
    """Of the launcher, with underscores; a switch is \"true\"."""
    start: ShellStart = field(default_factory=ShellStart)
    """What the shell does first, and the variables that it sets for the command alone."""
    has_launcher: bool = False
    """A launcher starts it, not Python."""
    unknown: tuple[str, ...] = ()
    """Words of the program that need what the shell does first and is left out."""
    output: str = ""
    """Where the shell leads the launcher's output."""
    lacks_folder: bool = False
    """The launcher would have the script import from the folder in which it is started, too."""
    is_prepared: bool = False
    """What the shell does first, it writes files, is a part of the program."""

    @property
    def script(self) -> str:
        """Empty: it is a module, or another program than Python."""
        python, *words = self.program
        return words[0] if python == "python" and words and words[0].endswith(".py") else ""

    @property
    def script_arguments(self) -> tuple[str, ...]:
        """What follows the script."""
        return self.program[2:]


@dataclass(frozen=True)
class Place:
    """Where a command is run."""

    nodes: int = 1
    devices: int = 0
    """Of each node."""
    folder: str = ""
    """In which the command begins; empty: not known."""


def parse_launch(command: Sequence[str], variables: Mapping[str, str], place_of_run: Place = Place()) -> Launch | None:
    """What a launcher or Python starts; None if the command is something else: a server, a module, a shell script, a
    script whose arguments only the shell knows, or for which the shell does more than write files.

    `variables` are those that the command finds, such as NODE_NUM.
    """
    words, of_command = [fill_in(word, variables) for word in command], list[str]()
    start, output, first, quoted = ShellStart(place_of_run.folder), "", "", list[str]()
    if place := place_of_text(command):
        first, last = split_writing(command[place])
        *earlier, last = [last] if first else split_commands(command[place]) or [""]
        last, output = split_output(last)
        start = read_start(earlier, place_of_run.folder, variables)
        quoted = split_words(last := fill_in(last, start.known))
        if not is_plain(last := mask_substitutions(last)):
            return None
        try:
            words = split_plain(last)
        except ValueError:
            return None
    all_words = tuple(words)
    while words and (is_assignment(words[0]) or words[0] in _BEFORE):
        of_command += filter(is_assignment, [words.pop(0)])
    dialect, rest = _after_launcher(words)
    flags, rest = _split_flags(rest, dialect.switches if dialect else frozenset())
    if not rest or (has_mask(all_words[: -len(rest)])):
        return None
    python = () if NO_PYTHON in flags else ("python", "-m") if flags.keys() & set(MODULE) else ("python",)
    quoted = quoted[-len(rest) :]
    is_filled = bool(first) or any(map(is_filled_in, quoted))
    if dialect and dialect.rank_flag and dialect.no_rank_flag not in flags:
        for each in (rest, quoted):
            each.insert(1, f"{dialect.rank_flag}=${{local_rank}}")  # Each worker's agent fills it in.
    translation = _of_torchrun(dialect, flags, place_of_run, variables)
    start, program = start.with_own(of_command), (*python, *rest)
    start, lacks_folder = _with_variables(start, translation, variables, program)
    unknown = tuple(word for word in quoted if names_in(word) & start.names_left_out())
    if is_filled:
        text = f"exec {' '.join([*python, *map(of_worker, quoted)])}"
        program = (*_PREPARE, for_agent(first)) if first else ()
        program += (*command[:place], text, *command[place + 1 :])
    launch = Launch(
        program, dict(translation.flags), start, dialect is not None, unknown, output, lacks_folder, bool(first)
    )
    is_whole = not (is_filled or output or start.others)
    return launch if dialect or first or (launch.script and is_whole) else None


def starter_in(command: Sequence[str]) -> str:
    """What in a command starts processes by itself, such as mpirun; empty: nothing that is known here."""
    match = _STARTER.search(" ".join(command))
    return match[1] or match[2] if match else ""


def _after_launcher(words: Sequence[str]) -> tuple[Dialect | None, list[str]]:
    """(the launcher that comes first, if one does, what follows it or the Python that begins a script)."""
    if not words:
        return None, []
    name = words[0].rpartition("/")[2]
    for dialect in DIALECTS:
        for command in dialect.commands:
            if (name, *words[1 : len(command)]) == command:
                return dialect, list(words[len(command) :])
    if re.fullmatch(r"python[0-9.]*", name):
        unbuffered = list(words[2:] if words[1:2] == ["-u"] else words[1:])
        module = unbuffered[1] if unbuffered[:1] == ["-m"] and unbuffered[1:2] else ""
        if dialect := next((known for known in DIALECTS if module in known.modules), None):
            return dialect, unbuffered[2:]
        if unbuffered and not unbuffered[0].startswith("-"):
            return None, unbuffered
    return None, []


def _of_torchrun(
    dialect: Dialect | None, flags: dict[str, str], place: Place, variables: Mapping[str, str]
) -> Translation:
    """The flags in torchrun's words."""
    kept = {name: value for name, value in flags.items() if name not in (*MODULE, NO_PYTHON)}
    if dialect is None:
        return Translation(kept, {})
    kept.pop(dialect.no_rank_flag, None)
    if processes := variables.get(dialect.slots_variable):
        kept.setdefault(SLOTS, processes)
    translation = dialect.translate(kept, place.nodes)
    translated = dict(translation.flags)
    if translated.get(SLOTS) in ("auto", DEVICES):
        if place.devices:
            translated[SLOTS] = str(place.devices)
        elif SLOTS in kept:
            translated[SLOTS] = kept[SLOTS]
        else:  # The launcher would start one process.
            del translated[SLOTS]
    return replace(translation, flags=translated)


def _with_variables(
    start: ShellStart, translation: Translation, given: Mapping[str, str], program: Sequence[str]
) -> tuple[ShellStart, bool]:
    """(the start with the launcher's variables, whether a folder is missing in them from which the program may import).

    What the image itself has in PYTHONPATH is not known: only one that the job gives can be appended to.
    """
    variables = {**start.variables, **translation.variables}
    if not translation.adds_folder:
        return replace(start, variables=variables), False
    paths = {**given, **start.variables}.get(_PATHS)
    if paths and _PATHS not in start.names_left_out():
        return replace(start, variables=variables | {_PATHS: f"{paths}:{start.folder or '.'}"}), False
    python, *words = program
    folder = posixpath.normpath(posixpath.join(start.folder, posixpath.dirname(words[0]))) if words else ""
    is_beside = python == "python" and folder == posixpath.normpath(start.folder)
    return replace(start, variables=variables), not is_beside


def _split_flags(words: list[str], switches: frozenset[str]) -> tuple[dict[str, str], list[str]]:
    """The launcher's flags, and the rest from the script on."""
    flags = dict[str, str]()
    while words and words[0].startswith("-"):
        name, equals, value = words.pop(0).lstrip("-").partition("=")
        name = name.replace("-", "_")
        if name in switches or not (equals or (words and not _FLAG.match(words[0]))):
            value = "true"
        elif not equals:
            value = words.pop(0)
            while name == "box_pairs" and words and _BOX_PAIRS.fullmatch(words[0]):
                value += f" {words.pop(0)}"
        flags[name] = value
    return flags, words


def step_arguments(flags: Mapping[str, str]) -> tuple[dict[str, Any], dict[str, str]]:
    """(arguments of the train step, the flags that it has not) for a launcher's flags but `CONF`."""
    arguments, flags_left = dict[str, Any](), dict[str, str]()
    for name, value in flags.items():
        numbers = [number_in(part) for part in value.split(":")]
        if name in _COUNTS and len(numbers) == 1 and numbers[0] is not None:
            arguments[_COUNTS[name]] = numbers[0]
        elif name == "nnodes" and len(numbers) < 3 and None not in numbers:
            arguments |= {"min_nodes": numbers[0], "nodes": numbers[-1]}
        elif name in CHECKS:
            arguments[name] = True
        elif name == "box_pairs" and _BOX_PAIRS.fullmatch(value):
            arguments[name] = value
        elif name not in (*_RENDEZVOUS, CONF) and not (name == "nnodes" and _OF_SIZE.fullmatch(value)):
            flags_left[name] = value
    return arguments, flags_left
