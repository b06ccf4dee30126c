"""Parses and validates request bodies: bytes in, one message out, or Refused with the field's name.

A message that passes can be journaled and read by every later master: its numbers are exact in JSON, its texts are of
bounded length, and its names are safe as parts of paths.
"""

import re
from functools import cache
from typing import NamedTuple, TypeVar

import msgspec

from everstep.runtime.job.brain import Refused
from everstep.runtime.protocol.holdings import Holding
from everstep.runtime.protocol.messages import PROTOCOL, Evidence, Join, ShardRequest, WorkerExit
from everstep.runtime.watch.hang_culprit import Standing
from everstep.runtime.watch.slow_ranks import Pace

LARGEST_BODY = 1 << 20
"""Bytes."""
LONGEST_TEXT = 4096
LARGEST_NUMBER = (1 << 53) - 1
"""The largest integer that every JSON reader represents exactly."""
MOST_SHARDS = MOST_RANKS = 1 << 20

_TEXTS: dict[tuple[type[msgspec.Struct], str], int] = {(WorkerExit, "error"): 16 << 10}
"""Fields with a limit of characters other than LONGEST_TEXT."""
_INTEGERS: dict[tuple[type[msgspec.Struct], str], tuple[int, int]] = {
    (Join, "slots"): (1, 1 << 16),
    (Join, "master_port"): (1, 65535),
    (Join, "index"): (-1, LARGEST_NUMBER),
    (Evidence, "shards"): (1, MOST_SHARDS),
    (Holding, "shards"): (1, MOST_SHARDS),
    (ShardRequest, "done"): (-1, LARGEST_NUMBER),
    (Standing, "rank"): (0, MOST_RANKS),
    (Standing, "world_size"): (0, MOST_RANKS),
    (WorkerExit, "exit_code"): (-LARGEST_NUMBER, LARGEST_NUMBER),
}
"""Fields with bounds other than 0 and LARGEST_NUMBER."""
_NAMES = frozenset({"node", "role"})
_NAME = re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]{0,252}")
_ADDRESS = re.compile(r"[^\s/]+:[0-9]{1,5}")

M = TypeVar("M", bound=msgspec.Struct)


_decoder = cache(msgspec.json.Decoder)


def parse_message(kind: type[M], body: bytes) -> M:
    """Parse and validate the message. Raises Refused."""
    if len(body) > LARGEST_BODY:
        raise Refused(f"{kind.__name__}: the body has more than {LARGEST_BODY} bytes")
    try:
        message: M = _decoder(kind).decode(body)
    except (ValueError, RecursionError) as error:
        raise Refused(f"{kind.__name__}: {error}") from error
    _check(message, kind.__name__, "$")
    return message


def _check_join(join: Join) -> None:
    if join.protocol != PROTOCOL:
        raise Refused(f"Join: protocol {join.protocol}, this master speaks {PROTOCOL}; install one version")
    if not _ADDRESS.fullmatch(join.address):
        raise Refused("Join: Expected host:port - at `$.address`")


def _check_pace(pace: Pace, what: str, at: str) -> None:
    """An agent that knows no pace says so by `iteration_s`, with any number of samples."""
    if pace.waited > 1:
        raise Refused(f"{what}: Expected a number from 0 to 1 - at `{at}.waited`")
    if pace.iteration_s and not pace.samples:
        raise Refused(f"{what}: Expected a number from 1 on - at `{at}.samples`")


class _Rule(NamedTuple):
    """What a field of a message may hold."""

    field: str
    longest: int
    """Characters of a text."""
    is_name: bool
    low: int
    high: int


@cache
def _rules(kind: type[msgspec.Struct]) -> tuple[_Rule, ...]:
    return tuple(
        _Rule(
            field,
            _TEXTS.get((kind, field), LONGEST_TEXT),
            field in _NAMES,
            *_INTEGERS.get((kind, field), (0, LARGEST_NUMBER)),
        )
        for field in kind.__struct_fields__
    )


def _check(struct: msgspec.Struct, what: str, at: str) -> None:
    if isinstance(struct, Join):
        _check_join(struct)
    elif isinstance(struct, Pace):
        _check_pace(struct, what, at)
    for field, longest, is_name, low, high in _rules(type(struct)):
        value = getattr(struct, field)
        if isinstance(value, str):
            _check_length(value, longest, what, f"{at}.{field}")
            if value and is_name and not _NAME.fullmatch(value):
                raise Refused(f"{what}: Expected a name of letters, digits and . _ - - at `{at}.{field}`")
        elif isinstance(value, int):
            if not low <= value <= high:
                raise Refused(f"{what}: Expected a number from {low} to {high} - at `{at}.{field}`")
        elif isinstance(value, float):
            if value < 0:
                raise Refused(f"{what}: Expected a number from 0 on - at `{at}.{field}`")
        elif isinstance(value, msgspec.Struct):
            _check(value, what, f"{at}.{field}")
        elif isinstance(value, tuple) and value:
            _check_each(value, what, f"{at}.{field}")


def _check_length(text: str, longest: int, what: str, at: str) -> None:
    if len(text) > longest:
        raise Refused(f"{what}: Expected at most {longest} characters, got {len(text)} - at `{at}`")


def _check_each(values: tuple[object, ...], what: str, at: str) -> None:
    for number, value in enumerate(values):
        if isinstance(value, msgspec.Struct):
            _check(value, what, f"{at}[{number}]")
        elif isinstance(value, str):
            _check_length(value, LONGEST_TEXT, what, f"{at}[{number}]")
        elif isinstance(value, int) and not 0 <= value <= LARGEST_NUMBER:
            raise Refused(f"{what}: Expected a number from 0 to {LARGEST_NUMBER} - at `{at}[{number}]`")
        elif isinstance(value, dict):
            for key, part in value.items():
                if isinstance(part, int) and abs(part) > LARGEST_NUMBER:
                    raise Refused(f"{what}: Expected a smaller number - at `{at}[{number}].{key}`")
