"""Bounds of expressions, so that no text of a manifest or a pod can stall the launcher or fill its memory.

expr-lang has such bounds, too ("Configuration": the memory budget and the most nodes); their words are used where they
have some. What is weighed counts every value as often as it is reached: lists that share a list are as large as what
would be written of them.
"""

import sys
from collections.abc import Iterator
from contextlib import contextmanager
from contextvars import ContextVar
from typing import Any

from everstep.runtime.workflow.expressions.errors import ExpressionError, ExpressionSyntaxError

WORK, EVENT, NODE = 500_000, 1_000_000, 200
"""Steps of one evaluation; of all that follows from one event or belongs to one manifest's check; and what each item of
a loop, and each node that is made, adds to that. A step is about a microsecond of a fast processor: a node of an
expression is one, as is a value that a function goes through. So an ordinary loop may be as long as a run may be, and
one text that is made to take long is told after some seconds."""
EVALUATION, TOKEN, CALL = 10, 4, 4
"""Steps of every evaluation, of a token that is read, and of calling a function."""
SUBSTITUTED, NODE_TEXT = 64 << 20, 4 << 10
"""Characters of all texts that are made by tags after one event, and what an item or node adds to that."""
MAX_VALUES = 1_000_000
"""Values that one call or operator may make, as expr-lang's memory budget has it."""
MAX_TEXT = 8 << 20
"""Characters of a text that is made or read."""
MAX_NODES = 10_000
"""Of an expression; expr-lang's own bound."""
MAX_TOKENS = 4 * MAX_NODES
MAX_NESTING = 1_000
"""How deep expressions and the values in them may nest. Go reads JSON 10,000 deep."""
TOO_MUCH = "memory budget exceeded"
TOO_DEEP = "recursion depth exceeded"
TOO_LONG = "compilation failed: expression exceeds maximum allowed nodes"
CHARACTERS_A_STEP = 64
"""Texts are gone through by C."""
RECURSION_LIMIT = 30_000
"""Frames of Python for that nesting: a level takes some, and most of them no stack of C."""
INT_MIN, INT_MAX = -(1 << 63), (1 << 63) - 1


class Meter:
    """The work and text that may still be spent."""

    def __init__(self, work: int) -> None:
        self.left = work
        self._text = SUBSTITUTED
        self._read: set[str] = set()

    def grant(self, nodes: int) -> None:
        """Add the work and text of that many more items or nodes."""
        self.left += NODE * nodes
        self._text += NODE_TEXT * nodes

    def spend_reading(self, source: str, steps: int) -> None:
        """Spend the steps of reading a text, the first time. Raises ExpressionError when it is too much."""
        if source not in self._read:
            self._read.add(source)
            self.spend(steps)

    def spend_text(self, characters: int) -> None:
        """Spend text that tags make. Raises ExpressionError when it is too much."""
        self._text -= characters
        if self._text < 0:
            raise ExpressionError(f"the texts of templates are longer than {SUBSTITUTED} characters")

    def spend(self, steps: int) -> None:
        """Spend steps. Raises ExpressionError when there are too many."""
        self.left -= steps
        if self.left < 0:
            raise ExpressionError(TOO_MUCH)

    def weigh(self, value: Any) -> None:
        """Go through a value. Raises ExpressionError when it is too large or too deep to be gone through."""
        if isinstance(value, str):
            self.spend(1 + len(value) // CHARACTERS_A_STEP)
        elif isinstance(value, list | dict):
            layer, depth = [value], 0
            while layer:
                layer, depth = self._layer(layer), depth + 1
                if depth > MAX_NESTING:
                    raise ExpressionError(TOO_DEEP)

    def _layer(self, values: list[Any]) -> list[Any]:
        """Spend what is in those lists and maps; returns the lists and maps in them."""
        below: list[Any] = []
        for value in values:
            self.spend(1 + len(value))
            inner = value if isinstance(value, list) else value.values()
            for item in inner:
                if isinstance(item, str):
                    self.left -= len(item) // CHARACTERS_A_STEP
                elif isinstance(item, list | dict):
                    below.append(item)
        return below


@contextmanager
def evaluation_meter(event: Meter) -> Iterator[Meter]:
    """A meter of one evaluation, whose steps are also spent of the event's meter."""
    own = Meter(min(WORK, event.left))
    before = own.left
    try:
        yield own
    finally:
        event.left -= before - own.left


_meter: ContextVar[Meter | None] = ContextVar("meter", default=None)


@contextmanager
def use_meter() -> Iterator[Meter]:
    """The current meter, or a new one if there is none. Raises ExpressionError for what is nested too deep."""
    outer = _meter.get()
    if outer is not None:
        try:
            yield outer
        except RecursionError:
            raise ExpressionError(TOO_DEEP) from None
        return
    meter, recursion = Meter(EVENT), sys.getrecursionlimit()
    token = _meter.set(meter)
    sys.setrecursionlimit(max(recursion, RECURSION_LIMIT))
    try:
        yield meter
    except RecursionError:
        raise ExpressionError(TOO_DEEP) from None
    finally:
        sys.setrecursionlimit(recursion)
        _meter.reset(token)


def check_count(count: int) -> int:
    """Raise ExpressionError if that many values are too many to make; returns the count."""
    if count > MAX_VALUES:
        raise ExpressionError(TOO_MUCH)
    return count


def check_length(characters: int) -> int:
    """Raise ExpressionError if a text of that length is too long to make; returns the length."""
    if characters > MAX_TEXT:
        raise ExpressionError(TOO_MUCH)
    return characters


def wrap_int64(value: int) -> int:
    """An integer wrapped to 64 bits, as in Go's arithmetic."""
    return value if INT_MIN <= value <= INT_MAX else (value - INT_MIN) % (1 << 64) + INT_MIN


def check_int64(value: int) -> int:
    """An integer that 64 bits hold. Raises ValueError for another."""
    if INT_MIN <= value <= INT_MAX:
        return value
    raise ValueError("value out of range")


def check_nesting(tree: Any) -> None:
    """Raise ExpressionSyntaxError for a tree of lark that has too many nodes, or is too deep to be gone through."""
    count, layer = 0, [tree]
    for _ in range(MAX_NESTING):
        count += len(layer)
        layer = [child for node in layer for child in getattr(node, "children", ())]
        if count > MAX_TOKENS or not layer:
            break
    if count > MAX_TOKENS:
        raise ExpressionSyntaxError(TOO_LONG)
    if layer:
        raise ExpressionSyntaxError(f"compilation failed: the expression is nested deeper than {MAX_NESTING} levels")
