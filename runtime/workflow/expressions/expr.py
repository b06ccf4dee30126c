"""expr-lang, as Argo 4 evaluates it: `{{=...}}`, `depends`, `retryStrategy.expression`.

Grammar and meaning after the language definition of expr-lang (expr-lang.org, "Language Definition"), without
closures, ranges, pipes and slices, which are refused by name. Functions are those that Argo adds (asInt, asFloat,
toJson) and `len`.
"""

import json
from collections.abc import Callable, Mapping
from functools import lru_cache
from typing import Any

from lark import Lark, Token, Transformer, Tree, v_args
from lark.exceptions import LarkError, VisitError

GRAMMAR = r"""
?start: ternary
?ternary: coalesce | coalesce "?" ternary ":" ternary -> ternary
?coalesce: either | coalesce "??" either -> coalesce
?either: both | either ("||" | "or") both -> either
?both: equality | both ("&&" | "and") equality -> both
?equality: sum
    | equality "==" sum -> eq | equality "!=" sum -> ne
    | equality "<" sum -> lt | equality "<=" sum -> le | equality ">" sum -> gt | equality ">=" sum -> ge
    | equality "in" sum -> within | equality "not" "in" sum -> not_within
    | equality "contains" sum -> contains | equality "startsWith" sum -> starts | equality "endsWith" sum -> ends
    | equality "matches" sum -> matches
?sum: product | sum "+" product -> add | sum "-" product -> sub
?product: unary | product "*" unary -> mul | product "/" unary -> div | product "%" unary -> mod
?unary: postfix | ("!" | "not") unary -> negate | "-" unary -> minus
?postfix: atom | postfix "." NAME -> member | postfix "?." NAME -> optional_member
    | postfix "[" ternary "]" -> index | NAME "(" [ternary ("," ternary)*] ")" -> call
?atom: INT -> integer | FLOAT -> real | STRING -> text | "true" -> true | "false" -> false | "nil" -> nil
    | NAME -> name | "(" ternary ")" | "[" [ternary ("," ternary)*] "]" -> array
    | "{" [pair ("," pair)*] "}" -> mapping
pair: (NAME | STRING) ":" ternary
NAME: /(?!(?:true|false|nil|in|not|and|or|contains|startsWith|endsWith|matches)\b)[A-Za-z_][A-Za-z0-9_]*/
INT: /\d+/
FLOAT: /\d+\.\d+/
STRING: /"(\\.|[^"\\])*"|'(\\.|[^'\\])*'|`[^`]*`/
%ignore /\s+/
"""
_parser = Lark(GRAMMAR, parser="lalr", maybe_placeholders=False)


class ExpressionError(ValueError):
    """The expression cannot be read, names something unknown, or does not fit its values."""


class UnknownNameError(ExpressionError):
    """A name that nothing is bound to."""


@lru_cache(maxsize=512)
def _parse(text: str) -> Tree[Token]:
    try:
        return _parser.parse(text)
    except LarkError as error:
        said = str(error).splitlines()[0]
        raise ExpressionError(f"cannot read the expression {text!r}: {said}") from None


def evaluate(text: str, environment: Mapping[str, Any]) -> Any:
    """The value of an expression; dotted names of the environment are expanded to maps first.

    Raises ExpressionError (UnknownNameError where a name is not bound).
    """
    tree = _parse(text)
    try:
        return _Evaluator(expand(environment)).transform(tree)
    except VisitError as error:
        if isinstance(error.orig_exc, ExpressionError):
            raise error.orig_exc from None
        raise ExpressionError(f"{text!r}: {error.orig_exc}") from None


def names(text: str) -> set[str]:
    """The dotted paths that an expression reads: `tasks.a.Succeeded` and the like."""
    found: set[str] = set()

    def path(node: Any) -> str | None:
        if isinstance(node, Tree):
            if node.data == "name":
                return str(node.children[0])
            if node.data == "member" and (inner := path(node.children[0])):
                return f"{inner}.{node.children[1]}"
        return None

    def walk(node: Any) -> None:
        if isinstance(node, Tree):
            if whole := path(node):
                found.add(whole)
            else:
                for child in node.children:
                    walk(child)

    walk(_parse(text))
    return found


def expand(environment: Mapping[str, Any]) -> dict[str, Any]:
    """`{"a.b": 1}` as `{"a": {"b": 1}}`."""
    expanded: dict[str, Any] = {}
    for key, value in environment.items():
        place = expanded
        *path, last = key.split(".")
        for part in path:
            if not isinstance(place.get(part), dict):
                place[part] = {}
            place = place[part]
        if not isinstance(place.get(last), dict):
            place[last] = value
    return expanded


def _unquote(token: str) -> str:
    if token[0] == "`":
        return token[1:-1]
    body = token[1:-1] if token[0] == '"' else token[1:-1].replace("\\'", "'").replace('"', '\\"')
    return json.loads(f'"{body}"')


def _as_int(value: Any) -> int:
    return int(value)


FUNCTIONS: dict[str, Callable[..., Any]] = {
    "asInt": _as_int,
    "asFloat": float,
    "toJson": lambda value: json.dumps(value, separators=(",", ":")),
    "len": len,
    "string": str,
    "int": _as_int,
    "float": float,
}


@v_args(inline=True)
class _Evaluator(Transformer[Token, Any]):
    """Bottom up: strict in all operands, which is safe as nothing has side effects."""

    def __init__(self, environment: Mapping[str, Any]) -> None:
        super().__init__()
        self._environment = environment

    def name(self, token: Token) -> Any:
        if token not in self._environment:
            raise UnknownNameError(f"unknown name {token}")
        return self._environment[token]

    def member(self, of: Any, token: Token) -> Any:
        if not isinstance(of, dict) or token not in of:
            raise UnknownNameError(f"unknown name {token}")
        return of[token]

    def optional_member(self, of: Any, token: Token) -> Any:
        return of.get(token) if isinstance(of, dict) else None

    def index(self, of: Any, key: Any) -> Any:
        try:
            return of[key]
        except (KeyError, IndexError, TypeError):
            raise UnknownNameError(f"unknown key {key!r}") from None

    def call(self, token: Token, *arguments: Any) -> Any:
        function = FUNCTIONS.get(token)
        if function is None:
            raise ExpressionError(f"function {token} is not supported here")
        try:
            return function(*arguments)
        except (TypeError, ValueError) as error:
            raise ExpressionError(f"{token}: {error}") from None

    def integer(self, token: Token) -> int:
        return int(token)

    def real(self, token: Token) -> float:
        return float(token)

    def text(self, token: Token) -> str:
        return _unquote(token)

    def true(self) -> bool:
        return True

    def false(self) -> bool:
        return False

    def nil(self) -> None:
        return None

    def array(self, *items: Any) -> list[Any]:
        return list(items)

    def pair(self, key: Token, value: Any) -> tuple[str, Any]:
        return (_unquote(key) if key.type == "STRING" else str(key), value)

    def mapping(self, *pairs: tuple[str, Any]) -> dict[str, Any]:
        return dict(pairs)

    def ternary(self, condition: Any, yes: Any, no: Any) -> Any:
        return yes if _boolean(condition) else no

    def coalesce(self, first: Any, second: Any) -> Any:
        return second if first is None else first

    def either(self, a: Any, b: Any) -> bool:
        return _boolean(a) or _boolean(b)

    def both(self, a: Any, b: Any) -> bool:
        return _boolean(a) and _boolean(b)

    def negate(self, a: Any) -> bool:
        return not _boolean(a)

    def minus(self, a: Any) -> Any:
        return -a

    def eq(self, a: Any, b: Any) -> bool:
        return (type(a) is type(b) and a == b) or (_numbers(a, b) and a == b)

    def ne(self, a: Any, b: Any) -> bool:
        return not self.eq(a, b)

    def lt(self, a: Any, b: Any) -> bool:
        return a < b

    def le(self, a: Any, b: Any) -> bool:
        return a <= b

    def gt(self, a: Any, b: Any) -> bool:
        return a > b

    def ge(self, a: Any, b: Any) -> bool:
        return a >= b

    def within(self, a: Any, b: Any) -> bool:
        return a in b

    def not_within(self, a: Any, b: Any) -> bool:
        return a not in b

    def contains(self, a: str, b: str) -> bool:
        return b in a

    def starts(self, a: str, b: str) -> bool:
        return a.startswith(b)

    def ends(self, a: str, b: str) -> bool:
        return a.endswith(b)

    def matches(self, a: str, b: str) -> bool:
        import re

        return re.search(b, a) is not None

    def add(self, a: Any, b: Any) -> Any:
        return a + b

    def sub(self, a: Any, b: Any) -> Any:
        return a - b

    def mul(self, a: Any, b: Any) -> Any:
        return a * b

    def div(self, a: Any, b: Any) -> float:
        return a / b

    def mod(self, a: Any, b: Any) -> Any:
        return a % b


def _numbers(*values: Any) -> bool:
    return all(isinstance(value, int | float) and not isinstance(value, bool) for value in values)


def _boolean(value: Any) -> bool:
    if not isinstance(value, bool):
        raise ExpressionError(f"{value!r} is no boolean")
    return value
