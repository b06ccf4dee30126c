"""Go's regular expressions, by RE2, whose time is linear in the text: no pattern can stall the launcher.

RE2's syntax is Go's, but for `\\C`, which Go lacks (github.com/google/re2, "Syntax"). What is no regular expression
raises ExpressionError in Go's words.
"""

import re
from collections.abc import Iterator
from functools import lru_cache
from typing import Any

from everstep.runtime.workflow.expressions.bounds import check_length, use_meter
from everstep.runtime.workflow.expressions.errors import ExpressionError

MEMORY = 8 << 20
"""Bytes for a compiled pattern and its automaton; RE2's own bound. Go bounds repetitions: x{1000} at most."""
STEPS = 4
"""Steps of an expression that one search for the next match costs."""
BYTES_A_STEP = 1024
"""A look may go through all of the text that is left."""
_GROUP = re.compile(r"\$(?:\{(\w+)\}|(\w+)|(\$))")


@lru_cache(maxsize=64)
def compile_pattern(pattern: str) -> Any:
    """The pattern. Raises ExpressionError."""
    import re2  # Here, not above: 20 ms, and most manifests have none.

    options = re2.Options()
    options.log_errors, options.max_mem = False, MEMORY
    try:
        if "\\C" in pattern.replace("\\\\", ""):
            raise re2.error("invalid escape sequence: \\C")
        return re2.compile(_bytes(pattern), options)
    except re2.error as error:
        why = error.args[0] if error.args else error
        why = why.decode(errors="replace") if isinstance(why, bytes) else why
        where, _, what = str(why).rpartition(": ")
        raise ExpressionError(f"error parsing regexp: {where or what}: `{what if where else pattern}`") from None


def matches(pattern: str, text: str) -> bool:
    """Whether the pattern matches somewhere in the text."""
    return compile_pattern(pattern).search(_bytes(text)) is not None


def find_first(pattern: str, text: str) -> str:
    """The first match; empty when there is none."""
    match = compile_pattern(pattern).search(_bytes(text))
    return _text(match.group()) if match else ""


def find_all(pattern: str, text: str, count: int = -1) -> list[str]:
    """The matches, at most `count`; a negative count means all."""
    return [_text(match.group()) for match in _iterate_matches(pattern, _bytes(text), count)]


def replace_all(pattern: str, text: str, new: str, literal: bool = False) -> str:
    """The text with `new` for what it finds; `$1` and `${name}` in it are groups, unless it is `literal`."""
    data, pieces, place, length = _bytes(text), list[bytes](), 0, len(text)
    for match in _iterate_matches(pattern, data):
        piece = _bytes(new if literal else _GROUP.sub(lambda group, match=match: _group_text(match, group), new))
        length = check_length(length + len(piece))
        pieces += (data[place : match.start()], piece)
        place = match.end()
    return _text(b"".join([*pieces, data[place:]]))


def split(pattern: str, text: str, count: int = -1) -> list[str]:
    """The parts between matches, at most `count`; a negative count means all."""
    if count == 0:
        return []
    data, parts, place, end = _bytes(text), list[str](), 0, 0
    if pattern and not data:
        return [""]
    for match in _iterate_matches(pattern, data):
        if count > 0 and len(parts) == count - 1:
            break
        end = match.start()
        if match.end():
            parts.append(_text(data[place:end]))
        place = match.end()
    return parts if end == len(data) else [*parts, _text(data[place:])]


def _iterate_matches(pattern: str, text: bytes, count: int = -1) -> Iterator[Any]:
    """What it finds, as Go goes on after each (regexp, `allMatches`): no empty one right behind another."""
    search, place, before = compile_pattern(pattern).search, 0, -1
    with use_meter() as meter:
        while place <= len(text) and count:
            meter.spend(STEPS + (len(text) - place) // BYTES_A_STEP)
            match = search(text, place)
            if match is None:
                return
            empty = match.end() == place
            if not empty or match.start() != before:
                count -= 1
                yield match
            place = _next_character(text, place) if empty else match.end()
            before = match.end()


def _next_character(text: bytes, place: int) -> int:
    """Where the character after the one at this place begins."""
    place += 1
    while place < len(text) and text[place] & 0xC0 == 0x80:
        place += 1
    return place


def _group_text(match: Any, name: "re.Match[str]") -> str:
    """What `$name` stands for (Go's regexp, Expand): a group that is not there is empty."""
    if name[3]:
        return "$"
    group_name = name[1] or name[2]
    try:
        return _text(match.group(int(group_name) if group_name.isdigit() else group_name) or b"")
    except (IndexError, KeyError):
        return ""


def _bytes(text: str) -> bytes:
    return text.encode(errors="replace")


def _text(data: bytes) -> str:
    return data.decode(errors="replace")
