"""govaluate, the language of `when`: after substitution bare words are strings, so `{{x}} == foo` compares texts.

Tokens, their order and the meaning of operators after the manual of govaluate ("Operators and types"), with the
messages that Argo shows. Values are bool, float, str and list.
"""

import math
import re
from collections.abc import Callable, Iterator
from datetime import datetime
from typing import Any

from lark import Lark, Token, v_args
from lark.exceptions import LarkError, VisitError
from lark.lexer import Lexer
from lark.visitors import Transformer_NonRecursive

from everstep.runtime.workflow.expressions import regexp
from everstep.runtime.workflow.expressions.bounds import MAX_TOKENS, TOKEN, check_length, use_meter, wrap_int64
from everstep.runtime.workflow.expressions.errors import ExpressionError
from everstep.runtime.workflow.expressions.operations import power, quotient
from everstep.runtime.workflow.expressions.values import go_text

GRAMMAR = r"""
?start: sequence
?sequence: ternary | sequence SEPARATOR ternary -> sequence
?ternary: either | either QUESTION ternary (COLON ternary)? -> ternary
?either: both | either OR both -> either
?both: comparison | both AND comparison -> both
?comparison: bits | comparison COMPARATOR bits -> compare
?bits: shift | bits BITWISE shift -> modify
?shift: sum | shift SHIFT sum -> modify
?sum: product | sum SIGN product -> modify
?product: power | product FACTOR power -> modify
?power: unary | unary POWER power -> modify
?unary: PREFIX unary -> prefix | atom
?atom: NUMERIC -> number | STRING -> text | VARIABLE -> text | BOOLEAN -> boolean
    | CLAUSE sequence CLAUSE_CLOSE -> clause
%declare SEPARATOR QUESTION COLON OR AND COMPARATOR BITWISE SHIFT SIGN FACTOR POWER PREFIX NUMERIC STRING VARIABLE
%declare BOOLEAN CLAUSE CLAUSE_CLOSE
"""
PREFIXES = ("-", "!", "~")
SYMBOLS = {
    "||": "OR", "&&": "AND", "==": "COMPARATOR", "!=": "COMPARATOR", "<": "COMPARATOR", "<=": "COMPARATOR",
    ">": "COMPARATOR", ">=": "COMPARATOR", "=~": "COMPARATOR", "!~": "COMPARATOR", "+": "SIGN", "-": "SIGN",
    "*": "FACTOR", "/": "FACTOR", "%": "FACTOR", "**": "POWER", "&": "BITWISE", "|": "BITWISE", "^": "BITWISE",
    "<<": "SHIFT", ">>": "SHIFT", "?": "QUESTION", ":": "COLON", "??": "OR",
}  # fmt: skip
KINDS = {
    "OR": "LOGICALOP", "AND": "LOGICALOP", "BITWISE": "MODIFIER", "SHIFT": "MODIFIER", "SIGN": "MODIFIER",
    "FACTOR": "MODIFIER", "POWER": "MODIFIER", "QUESTION": "TERNARY", "COLON": "TERNARY",
}  # fmt: skip
"""govaluate's names of kinds, where they are not the token's own."""
_VALUES = {"NUMERIC", "BOOLEAN", "VARIABLE", "STRING", "CLAUSE", "PREFIX"}
_AFTER_VALUE = {"MODIFIER", "COMPARATOR", "LOGICALOP", "CLAUSE_CLOSE", "TERNARY", "SEPARATOR"}
FOLLOWS: dict[str, set[str]] = {
    "UNKNOWN": _VALUES,
    "CLAUSE": _VALUES | {"CLAUSE_CLOSE"},
    "CLAUSE_CLOSE": _AFTER_VALUE | _VALUES - {"PREFIX"},
    "NUMERIC": _AFTER_VALUE,
    "BOOLEAN": _AFTER_VALUE,
    "STRING": _AFTER_VALUE,
    "VARIABLE": _AFTER_VALUE,
    "MODIFIER": _VALUES,
    "COMPARATOR": _VALUES,
    "LOGICALOP": _VALUES,
    "PREFIX": _VALUES - {"STRING", "PREFIX"},
    "TERNARY": _VALUES | {"SEPARATOR"},
    "SEPARATOR": _VALUES,
}
"""Which kinds may follow a kind."""
ENDS = {"NUMERIC", "BOOLEAN", "STRING", "VARIABLE", "CLAUSE_CLOSE"}
_DATES = ("%Y-%m-%d", "%Y-%m-%d %H:%M", "%Y-%m-%d %H:%M:%S", "%Y-%m-%dT%H", "%Y-%m-%dT%H:%M", "%Y-%m-%dT%H:%M:%S",
          "%Y-%m-%dT%H:%M:%S%z", "%Y-%m-%dT%H%z")  # fmt: skip


def should_run(text: str) -> bool:
    """What a substituted `when` says. Raises ExpressionError, in Argo's words, where it says nothing."""
    try:
        tree = _parser.parse(text)
    except ExpressionError as error:
        hint = ' (hint: try wrapping the affected expression in quotes ("))' if "Invalid token" in str(error) else ""
        raise ExpressionError(f"Invalid 'when' expression '{text}': {error}{hint}") from None
    except LarkError:
        raise ExpressionError(f"Invalid 'when' expression '{text}': Unbalanced parenthesis") from None
    try:
        with use_meter():
            value = _Evaluator().transform(tree)
    except VisitError as error:
        raise ExpressionError(f"Failed to evaluate 'when' expresion '{text}': {error.orig_exc}") from None
    if not isinstance(value, bool):
        raise ExpressionError(f"Expected boolean evaluation for '{text}'. Got {go_text(value)}")
    return value


class _Lexer(Lexer):
    """govaluate reads and checks token after token; lark's parser only orders them."""

    def __init__(self, conf: Any) -> None:
        pass

    def lex(self, data: Any) -> Iterator[Token]:
        """The tokens of a text."""
        return iter(_tokenize(str(data)))


def _tokenize(text: str) -> list[Token]:
    tokens: list[Token] = []
    place, before = 0, "UNKNOWN"
    while True:
        while place < len(text) and text[place].isspace():
            place += 1
        if place >= len(text):
            break
        token, place = _read_token(text, place, before)
        before = _token_kind(token)
        tokens.append(token)
        if len(tokens) > MAX_TOKENS:
            raise ExpressionError(f"the expression has more than {MAX_TOKENS} tokens")
    _check_order(tokens)
    with use_meter() as meter:
        meter.spend(TOKEN * len(tokens))
    return tokens


def _token_kind(token: Token) -> str:
    return KINDS.get(token.type, token.type)


def _check_order(tokens: list[Token]) -> None:
    """Every kind may follow the one before it, and parentheses match."""
    before, before_text = "UNKNOWN", "<nil>"
    for token in tokens:
        kind = _token_kind(token)
        if kind not in FOLLOWS[before]:
            raise ExpressionError(
                f"Cannot transition token types from {before} [{before_text}] to {kind} [{_token_text(token)}]"
            )
        before, before_text = kind, _token_text(token)
    if before not in ENDS:
        raise ExpressionError("Unexpected end of expression")
    if sum({"CLAUSE": 1, "CLAUSE_CLOSE": -1}.get(token.type, 0) for token in tokens):
        raise ExpressionError("Unbalanced parenthesis")


def _token_text(token: Token) -> str:
    if token.type == "NUMERIC":
        return go_text(_parse_number(token))
    return {"CLAUSE": "40", "CLAUSE_CLOSE": "41"}.get(token.type, str(token))


def _parse_number(text: str) -> float:
    return float(wrap_int64(int(text, 16))) if text[:2] in ("0x", "0X") else float(text)


def _read_token(text: str, place: int, before: str) -> tuple[Token, int]:
    """The token that begins here, and where the next may."""
    first = text[place]
    if first.isdigit() or first == ".":
        match = re.compile(r"0[xX][0-9a-fA-F]+|[\d.]+").match(text, place)
        if match is None:
            raise ExpressionError(f"Invalid token: '{first}'")
        try:
            _parse_number(match.group())
        except ValueError:
            raise ExpressionError(f"Unable to parse numeric value '{match.group()}' to float64") from None
        return Token("NUMERIC", match.group()), match.end()
    if first in "'\"":
        return _read_string(text, place)
    if first == "[":
        end = text.find("]", place)
        if end < 0:
            raise ExpressionError("Unclosed parameter bracket")
        return Token("VARIABLE", text[place + 1 : end]), end + 1
    match = re.compile(r"[\w.]+").match(text, place) if first.isalpha() else None
    if match is not None:
        word = match.group()
        kind = "BOOLEAN" if word in ("true", "false") else "COMPARATOR" if word in ("in", "IN") else "VARIABLE"
        return Token(kind, "in" if kind == "COMPARATOR" else word), match.end()
    if first in ",()":
        return Token({",": "SEPARATOR", "(": "CLAUSE", ")": "CLAUSE_CLOSE"}[first], first), place + 1
    match = re.compile(r"""[^\w\s()\[\]'"]+""").match(text, place)
    symbol = match.group() if match else first
    if "PREFIX" in FOLLOWS[before] and symbol in PREFIXES:
        return Token("PREFIX", symbol), place + len(symbol)
    if symbol not in SYMBOLS:
        raise ExpressionError(f"Invalid token: '{symbol}'")
    return Token(SYMBOLS[symbol], symbol), place + len(symbol)


def _read_string(text: str, place: int) -> tuple[Token, int]:
    """Either quote ends a string, whichever began it; a backslash takes the next character as it is."""
    read, position = "", place + 1
    while position < len(text):
        character = text[position]
        if character in "'\"":
            return Token("STRING", read), position + 1
        if character == "\\" and position + 1 < len(text):
            position += 1
            character = text[position]
        read += character
        position += 1
    raise ExpressionError("Unclosed string literal")


_parser = Lark(GRAMMAR, parser="lalr", lexer=_Lexer, maybe_placeholders=False)


def _date_seconds(text: str) -> float | None:
    """Seconds of a string that govaluate takes for a date."""
    for form in _DATES:
        try:
            return datetime.strptime(text, form).astimezone().timestamp()
        except ValueError:
            continue
    return None


def _check_numbers(symbol: str, what: str, *values: Any) -> None:
    for value in values:
        if not isinstance(value, float):
            raise ExpressionError(
                f"Value '{go_text(value)}' cannot be used with the {what} '{symbol}', it is not a number"
            )


def _bitwise(operation: Callable[[int, int], int]) -> Callable[[float, float], float]:
    """Of numbers as integers of 64 bits. What is no such number is 0."""

    def of(a: float, b: float) -> float:
        whole = [wrap_int64(int(number)) if math.isfinite(number) else 0 for number in (a, b)]
        return float(wrap_int64(operation(*whole)))

    return of


def _modulo(a: float, b: float) -> float:
    return math.fmod(a, b) if b and math.isfinite(a) else math.nan


def _bounded_shift(by: Callable[[int, int], int]) -> Callable[[int, int], int]:
    """A shift is by as many bits as an unsigned number says."""
    return lambda a, b: by(a, b) if 0 <= b < 64 else by(a, 64)


MODIFIERS: dict[str, Callable[[float, float], float]] = {
    "+": lambda a, b: a + b, "-": lambda a, b: a - b, "*": lambda a, b: a * b,
    "/": quotient, "%": _modulo, "**": power, "&": _bitwise(lambda a, b: a & b), "|": _bitwise(lambda a, b: a | b),
    "^": _bitwise(lambda a, b: a ^ b), "<<": _bitwise(_bounded_shift(lambda a, b: a << b)),
    ">>": _bitwise(_bounded_shift(lambda a, b: a >> b)),
}  # fmt: skip


@v_args(inline=True)
class _Evaluator(Transformer_NonRecursive[Token, Any]):
    """Bottom up: nothing has side effects."""

    def number(self, token: Token) -> float:
        return _parse_number(token)

    def text(self, token: Token) -> Any:
        seconds = _date_seconds(token) if token.type == "STRING" else None
        return str(token) if seconds is None else seconds

    def boolean(self, token: Token) -> bool:
        return token == "true"

    def clause(self, _open: Token, value: Any, _close: Token) -> Any:
        return value

    def sequence(self, first: Any, _comma: Token, second: Any) -> list[Any]:
        return [*first, second] if isinstance(first, list) else [first, second]

    def ternary(self, condition: Any, _question: Token, yes: Any, _colon: Any = None, no: Any = None) -> Any:
        if not isinstance(condition, bool):
            raise ExpressionError(
                f"Value '{go_text(condition)}' cannot be used with the ternary operator '?', it is not a bool"
            )
        return yes if condition else no

    def either(self, a: Any, symbol: Token, b: Any) -> Any:
        if symbol == "??":
            return b if a is None else a
        return self._logical(symbol, a, b) and (a or b)

    def both(self, a: Any, symbol: Token, b: Any) -> bool:
        return self._logical(symbol, a, b) and (a and b)

    def _logical(self, symbol: Token, *values: Any) -> bool:
        for value in values:
            if not isinstance(value, bool):
                raise ExpressionError(
                    f"Value '{go_text(value)}' cannot be used with the logical operator '{symbol}', it is not a bool"
                )
        return True

    def prefix(self, symbol: Token, value: Any) -> Any:
        if symbol == "!":
            if not isinstance(value, bool):
                raise ExpressionError(f"Value '{go_text(value)}' cannot be used with the prefix '!', it is not a bool")
            return not value
        _check_numbers(symbol, "prefix", value)
        return -value if symbol == "-" else _bitwise(lambda a, _: ~a)(value, 0.0)

    def modify(self, a: Any, symbol: Token, b: Any) -> Any:
        if symbol == "+" and (isinstance(a, str) or isinstance(b, str)):
            texts = go_text(a), go_text(b)
            check_length(sum(map(len, texts)))
            return "".join(texts)
        _check_numbers(symbol, "modifier", a, b)
        return MODIFIERS[symbol](a, b)

    def compare(self, a: Any, symbol: Token, b: Any) -> bool:
        if symbol in ("==", "!="):
            return (type(a) is type(b) and a == b) == (symbol == "==")
        if symbol in ("=~", "!~"):
            return regexp.matches(go_text(b), go_text(a)) == (symbol == "=~")
        if symbol == "in":
            if not isinstance(b, list):
                _check_numbers(symbol, "comparator", b if isinstance(b, str) else go_text(b))
            return any(type(a) is type(item) and a == item for item in b)
        if not (isinstance(a, str) and isinstance(b, str)):
            _check_numbers(symbol, "comparator", a, b)
        return {"<": a < b, "<=": a <= b, ">": a > b, ">=": a >= b}[symbol]
