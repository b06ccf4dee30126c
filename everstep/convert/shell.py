"""What a shell does before the command that starts a training: `cd`, variables, and anything else."""

import posixpath
import re
import shlex
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

_ASSIGNMENT = re.compile(r"([A-Za-z_][A-Za-z0-9_]*)=(.*)", re.DOTALL)
_NOT_LITERAL = re.compile(r"[$`~*?\[()|;&<>]")
_RENDEZVOUS = ("NODE_RANK", "DLROVER_MASTER_ADDR", "MASTER_ADDR", "MASTER_PORT")
"""Where a launcher's nodes meet: the train step decides it."""


@dataclass(frozen=True)
class ShellStart:
    """What comes before the command."""

    folder: str = ""
    """Where the command begins; empty: not known."""
    variables: Mapping[str, str] = field(default_factory=dict)
    """Those that are exported, or set for the command alone, to a text that is known."""
    others: tuple[str, ...] = ()
    """Everything else, as it stands."""


def read_start(commands: Sequence[str], assignments: Sequence[str], folder: str = "") -> ShellStart:
    """`commands` come before the command, joined by &&; `assignments` are its own, such as A=1. They begin in `folder`;
    empty: not known."""
    variables, others = dict[str, str](), list[str]()
    for command in commands:
        name, *words = _split(command)
        leads_to = posixpath.normpath(posixpath.join(folder, words[0])) if len(words) == 1 else ""
        if name == "cd" and leads_to.startswith("/") and not _NOT_LITERAL.search(leads_to):
            folder = leads_to
        elif name == "export" and words and all(map(_is_known, words)):
            variables |= map(_halves, words)
        else:
            others.append(command)
    variables |= map(_halves, filter(_is_known, assignments))
    others += [text for text in assignments if not _is_known(text)]
    return ShellStart(
        folder, {name: value for name, value in variables.items() if name not in _RENDEZVOUS}, tuple(others)
    )


def _split(command: str) -> list[str]:
    """At least one word, which is empty if they cannot be told apart."""
    try:
        return shlex.split(command) or [""]
    except ValueError:
        return [""]


def _is_known(assignment: str) -> bool:
    """Whether it is one, and its value is known here, or does not matter."""
    match = _ASSIGNMENT.fullmatch(assignment)
    return bool(match) and (match[1] in _RENDEZVOUS or not _NOT_LITERAL.search(match[2]))


def _halves(assignment: str) -> tuple[str, str]:
    name, _, value = assignment.partition("=")
    return name, value
