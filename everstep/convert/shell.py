"""What a shell does before the command that starts a training: `cd`, variables, and anything else."""

import posixpath
import re
import shlex
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace

SHELLS = ("sh", "bash", "/bin/sh", "/bin/bash", "/usr/bin/sh", "/usr/bin/bash")
_ASSIGNMENT = re.compile(r"([A-Za-z_][A-Za-z0-9_]*)=(.*)", re.DOTALL)
_NOT_LITERAL = re.compile(r"[$`~*?\[()|;&<>]")
_QUOTES = r"""'[^']*'|"(?:\\.|[^"\\])*"|\\."""
_QUOTED = re.compile(_QUOTES, re.DOTALL)
_COMMENT = r"(?<![^\s;&(])#[^\n]*"
_PIECE = re.compile(
    rf"(?P<comment>{_COMMENT})|{_QUOTES}|(?P<joint>&&|\|[|&]?)(?:\s|#[^\n]*)*|[^'\"\\#&;()|\n]+|.", re.DOTALL
)
"""A shell's text is made of these. What is in quotes is one piece, and so are line breaks after a joint: the command
goes on."""
_ESCAPED = re.compile(r"\\.", re.DOTALL)
_SYNTAX, _SUBSTITUTION = re.compile(r"[;|<>&()\n]"), re.compile(r"`|\$\(")
_SUBSTITUTED = r"""\$\([^()'"`\n]*\)|`[^`'"\n]*`"""
"""A command whose output is put there, without quotes of its own."""
_SUBSTITUTION_OR_ESCAPED = re.compile(rf"\\.|{_SUBSTITUTED}", re.DOTALL)
_MASK = "\1"
_FILE = r"""[^\s'"|&;<>]+"""
_OUTPUT = re.compile(rf"(?<=\s)(2>&1\s*)?(\|&?\s*tee(\s+-a)?\s+{_FILE}|&?>>?\s*{_FILE}(\s+2>&1)?|2>&1)\s*$")
_AND = "\0"
"""Stands for `&&` between commands: no argument of a program can have it."""
_COMPOUND = re.compile(
    r"(if|then|elif|else|fi|for|while|until|do|done|case|esac|select|function|\{|\}|!|\[\[)(\s|$)|\S+\s*\(\)"
)
"""How a part of a command begins that decides which of the others run."""
_OPTIONS = re.compile(r"set(\s+[-+][a-z]+|\s+pipefail)+")
"""Of the shell itself, which say nothing about the command that it starts at last."""
_SETS = re.compile(r"(cd|export)\s|[A-Za-z_]\w*=[^\s$`]*$")
"""How a command begins that only sets something for those after it."""
_VARIABLE = re.compile(r"\\.|\$(\w+)|\$\{(\w+)\}", re.DOTALL)
"""Or a character that a backslash takes its meaning."""
_NAME = re.compile(r"\\.|\$(\w+)|\$\{(\w+)(?=[:}\-+?=%#/])", re.DOTALL)
"""The same with what a shell may put instead, such as `${A:-1}`, of which only the name is matched."""
_SPAN = re.compile(rf"{_QUOTES}|[^'\"\\]+|.", re.DOTALL)
"""A part of a shell's text with the same quotes."""
_PLAIN = re.compile(r"[\w@%+=:,./ -]*", re.ASCII)
"""A value that stands for itself, within quotes and without: there it may be several words."""
_DOCUMENT = re.compile(r"(<<-?[ \t]*)(['\"]?)(\w+)\2([^\n]*\n)((?:.*?\n)?)([ \t]*\3\n)", re.DOTALL)
"""A here-document, from what marks it to its end; the fourth group is the rest of its command, the fifth its text."""
_SPECIAL = re.compile(r"[\\$`]")
"""What a shell does not take as it stands in a here-document whose delimiter has no quotes."""
_TEXT = re.compile(rf"{_DOCUMENT.pattern}|{_COMMENT}|{_QUOTES}|[^'\"\\#<]+|.", re.DOTALL)
"""A part of a shell's text that is quoted as a whole, or not at all."""
_WRITES = re.compile(r"(?<![\d&<>-])>>?\s*(?![\s&]|/dev/)")
"""Output that goes into a file, in a command without its quotes: not its errors, nor all of it."""
_EXPANDED = re.compile(r"[*?\[]|^~|\{[^{}]*(?:,|\.\.)[^{}]*\}")
"""In a word without quotes: names of files, one's own folder, several words (bash)."""
_WORD = re.compile(rf"(?:{_QUOTES}|{_SUBSTITUTED}|[^\s'\"\\])+", re.DOTALL)
"""As a shell separates them, with their quotes."""
_OF_AGENT = re.compile(r"\$(\$|\{?local_rank\b)")
_NODES_RANK = "GROUP_RANK"
_RANKS = dict.fromkeys(("RANK", "NODE_RANK", "PET_NODE_RANK", "WORKER_RANK", "JOB_COMPLETION_INDEX"), _NODES_RANK)
"""Where a launcher stands, these are its node's, which a worker knows by another name."""
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
    known: Mapping[str, str] = field(default_factory=dict)
    """What variables stand for in the command's words."""

    def with_own(self, assignments: Sequence[str]) -> "ShellStart":
        """And with the assignments of the command itself, such as A=1."""
        own = dict(map(_halves, filter(_is_known, assignments)))
        others = tuple(text for text in assignments if not _is_known(text))
        return replace(self, variables=_without_meeting({**self.variables, **own}), others=(*self.others, *others))

    def names_left_out(self) -> frozenset[str]:
        """The variables that `others` may set."""
        return frozenset(re.findall(r"\w+", " ".join(self.others)))


def place_of_text(command: Sequence[str]) -> int:
    """Of the text that a shell is told to run (`bash -lc TEXT`) among the words; 0: it is none."""
    place = 1
    while command[0:1] and command[0] in SHELLS and command[place + 1 :] and re.match("-[^-]", command[place]):
        place += 1
        if command[place - 1].endswith("c"):
            return place
    return 0


def filled_in_at_start(command: Sequence[str], names: Mapping[str, str]) -> tuple[str, ...]:
    """A container's command in which each worker's shell, not Kubernetes, fills in `$(NAME)` of these names, which
    are mapped to those of the worker's variables."""
    reference = re.compile(rf"\$\(({'|'.join(map(re.escape, names))})\)")
    place = place_of_text(command)
    if place and not any(map(reference.search, (*command[:place], *command[place + 1 :]))):

        def filled(span: re.Match[str]) -> str:
            begin, quote, delimiter, rest, document, end = span.groups()
            if quote and reference.search(document):  # With quotes, its shell would put nothing there.
                parts = reference.split(document)  # In turn texts and names.
                texts = (
                    f"${{{names[part]}}}" if n % 2 else _SPECIAL.sub(r"\\\g<0>", part) for n, part in enumerate(parts)
                )
                return f"{begin}{delimiter}{_TEXT.sub(filled, rest)}{''.join(texts)}{end}"
            before, after = ("'\"", "\"'") if span[0][0] == "'" else ("", "")
            return reference.sub(lambda match: f"{before}${{{names[match[1]]}}}{after}", span[0])

        return (*command[:place], _TEXT.sub(filled, command[place]), *command[place + 1 :])
    if not any(map(reference.search, command)):
        return tuple(command)
    pieces = (reference.split(word) for word in command)  # In turn texts and names.
    words = (
        "".join(f'"${names[part]}"' if number % 2 else part and shlex.quote(part) for number, part in enumerate(parts))
        or "''"
        for parts in pieces
    )
    return "sh", "-c", f"exec {' '.join(words)}"


def split_commands(text: str) -> list[str]:
    """A shell's text at each `;` and line break outside of quotes and parentheses, and at `&&` where it is known that
    what follows is done: without comments, and without the line breaks that a backslash takes away. Empty: the text
    decides which of its commands run, or what they read."""
    parts, depth = [list[str]()], 0
    for match in _PIECE.finditer(text):
        piece = match[0] if match[0].startswith("'") else match[0].replace("\\\n", "")
        piece = f"{match['joint']} " if match["joint"] else piece
        depth += (piece == "(") - (piece == ")")
        if piece in (";", "\n") and depth == 0:
            parts.append([])
        elif match["joint"] == "&&" and depth == 0:
            parts[-1].append(f"{_AND} ")
        elif match["comment"] is None:
            parts[-1].append(piece)
    texts = [text for part in parts if (text := "".join(part).strip())]
    commands = [command for text in texts[:-1] for command in _apart(text)]
    commands += [command.strip() for command in "".join(texts[-1:]).split(_AND)]
    decides = any(_COMPOUND.match(command) or "<<" in _QUOTED.sub("", command) for command in commands)
    return [] if decides else commands


def split_writing(text: str) -> tuple[str, str]:
    """(all that comes before the last command, that command) of a shell's text that writes files first, from
    here-documents or as the output of its commands. Two empty texts: it writes none, or more than the order of its
    commands decides what is done."""
    bare, documents = _DOCUMENT.subn(lambda document: document[4], text)
    *earlier, last = split_commands(bare) or [""]
    whole = text.rstrip()
    writes = documents or any(
        _WRITES.search(_QUOTED.sub("", command)) and not command.startswith("exec ") for command in earlier
    )
    return (whole[: -len(last)], last) if writes and last and whole.endswith(last) else ("", "")


def _apart(text: str) -> list[str]:
    """`A && B` apart if A only sets something, else whole: in `A && B; C` it is not known whether B is done."""
    *first, last = (command.strip() for command in text.split(_AND))
    return [*first, last] if all(map(_SETS.match, first)) else [text.replace(_AND, "&&")]


def split_output(command: str) -> tuple[str, str]:
    """(the command, where the shell leads its output; empty: nowhere)."""
    match = _OUTPUT.search(command)
    return (command[: match.start()], match[0].strip()) if match else (command, "")


def is_plain(command: str) -> bool:
    """Whether a shell would do nothing but start it, after filling in variables."""
    return not (_SYNTAX.search(_QUOTED.sub("", command)) or _SUBSTITUTION.search(_without_literals(command)))


def words_to_expand(command: str) -> frozenset[str]:
    """Its words without quotes for which a shell would put names of files, or several words."""
    return frozenset(word for word in _QUOTED.sub("", command).split() if _EXPANDED.search(word))


def mask_substitutions(command: str) -> str:
    """With one character, which no command has, for each command whose output a shell would put there."""

    return _replace(command, _SUBSTITUTION_OR_ESCAPED, lambda match: match[0] if match[0][0] == "\\" else _MASK)


def has_mask(words: Sequence[str]) -> bool:
    """Whether one of the words has a command's output in it."""
    return any(_MASK in word for word in words)


def split_plain(command: str) -> list[str]:
    """Its words as the program gets them, if a shell fills in nothing. Raises ValueError: a quote is open."""

    def unescaped(match: re.Match[str]) -> str:
        return match[0][1] if match[0][1] in "$`" else match[0]

    spans = (span[0] for span in _SPAN.finditer(command))
    return shlex.split("".join(_ESCAPED.sub(unescaped, span) if span[0] == '"' else span for span in spans))


def split_words(command: str) -> list[str]:
    """Its words with their quotes, as many as `shlex.split` finds."""
    return _WORD.findall(command)


def is_filled_in(word: str) -> bool:
    """Whether a shell puts something else for a word with its quotes."""
    return bool(re.search("[$`]", _without_literals(word))) or bool(words_to_expand(word))


def names_in(text: str) -> frozenset[str]:
    """The variables that a shell's text names."""
    matches = _NAME.finditer(_without_literals(text))
    return frozenset(match[1] or match[2] for match in matches if match[1] or match[2])


def of_worker(word: str) -> str:
    """A launcher's word in which the node's rank has the name that it has in a worker."""

    def renamed(match: re.Match[str]) -> str:
        name = match[1] or match[2]
        closing = "}" if match[1] else ""
        return f"${{{_RANKS[name]}{closing}" if name in _RANKS else match[0]

    return _replace(word, _NAME, renamed)


def for_agent(text: str) -> str:
    """A text as a worker's agent takes it, which fills in `${local_rank}` and for `$$` puts `$`."""
    return text.replace("$", "$$") if _OF_AGENT.search(text) else text


def fill_in(text: str, variables: Mapping[str, str]) -> str:
    """A shell's text with the values of variables, but for values that are not plain and where the nodes meet."""

    def filled(match: re.Match[str]) -> str:
        name = match[1] or match[2]
        value = None if name in _RENDEZVOUS else variables.get(name)
        return match[0] if value is None or not _PLAIN.fullmatch(value) else value

    return _replace(text, _VARIABLE, filled)


def _replace(text: str, pattern: re.Pattern[str], by: Callable[[re.Match[str]], str]) -> str:
    """`pattern.sub`, but for what is in single quotes, or escaped outside of quotes."""
    return _SPAN.sub(lambda span: span[0] if span[0][0] in "'\\" else pattern.sub(by, span[0]), text)


def _without_literals(text: str) -> str:
    """Without what is in single quotes, or escaped: there a shell puts nothing else."""
    return _SPAN.sub(lambda span: "" if span[0][0] in "'\\" else _ESCAPED.sub("", span[0]), text)


def is_assignment(word: str) -> bool:
    """A=1, and the like."""
    return bool(_ASSIGNMENT.fullmatch(word))


def read_start(commands: Sequence[str], folder: str, given: Mapping[str, str]) -> ShellStart:
    """`commands` come before the command, one after the other. They begin in `folder` (empty: not known), with the
    variables `given`."""
    variables, known, others = dict[str, str](), dict(given), list[str]()
    for command in commands:
        name, *words = _split(fill_in(command, known))
        leads_to = posixpath.normpath(posixpath.join(folder, words[0])) if len(words) == 1 else ""
        exported = [f"{word}={known[word]}" if word in known else word for word in words]
        if name == "cd" and leads_to.startswith("/") and not _NOT_LITERAL.search(leads_to):
            folder = leads_to
        elif name == "export" and words and all(map(_is_known, exported)):
            variables |= map(_halves, exported)
            known |= map(_halves, exported)
        elif _OPTIONS.fullmatch(command):
            continue
        elif all(map(_is_known, [name, *words])):  # The shell's own, unless they are exported already.
            known |= map(_halves, [name, *words])
            variables |= {key: known[key] for key, _ in map(_halves, [name, *words]) if key in {**given, **variables}}
        else:
            others.append(command)
            for word in re.findall(r"\w+", command):  # It may be set to something else.
                known.pop(word, None)
    return ShellStart(folder, _without_meeting(variables), tuple(others), known)


def _without_meeting(variables: Mapping[str, str]) -> dict[str, str]:
    return {name: value for name, value in variables.items() if name not in _RENDEZVOUS}


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
