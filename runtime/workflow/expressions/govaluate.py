"""govaluate, as Argo's `when` uses it: after substitution bare words are strings, so `{{x}} == true` compares texts.

Grammar after the manual of govaluate ("Operators and types"); without functions, regular expressions and dates.
"""

from typing import Any

from lark import Lark, Token, Transformer, v_args
from lark.exceptions import LarkError, VisitError

from runtime.workflow.expressions.expr import ExpressionError

GRAMMAR = r"""
?start: either
?either: both | either "||" both -> either
?both: equality | both "&&" equality -> both
?equality: sum | equality "==" sum -> eq | equality "!=" sum -> ne
    | equality "<" sum -> lt | equality "<=" sum -> le | equality ">" sum -> gt | equality ">=" sum -> ge
    | equality "in" sum -> within
?sum: product | sum "+" product -> add | sum "-" product -> sub
?product: unary | product "*" unary -> mul | product "/" unary -> div | product "%" unary -> mod
?unary: atom | "!" unary -> negate | "-" unary -> minus
?atom: NUMBER -> number | STRING -> text | WORD -> word | "(" either ")" | "(" either ("," either)+ ")" -> array
WORD: /(?!in\b)[A-Za-z_][A-Za-z0-9_]*/
NUMBER: /\d+(\.\d+)?/
STRING: /"[^"]*"|'[^']*'/
%ignore /\s+/
"""
_parser = Lark(GRAMMAR, parser="lalr")


def should_run(text: str) -> bool:
    """What a substituted `when` says. Raises ExpressionError for one that cannot be read or is no boolean."""
    try:
        value = _Evaluator().transform(_parser.parse(text))
    except VisitError as error:
        raise ExpressionError(f"when {text!r}: {error.orig_exc}") from None
    except LarkError as error:
        raise ExpressionError(f"cannot read the when {text!r}: {str(error).splitlines()[0]}") from None
    if not isinstance(value, bool):
        raise ExpressionError(f"when {text!r} gives {value!r}, no boolean")
    return value


@v_args(inline=True)
class _Evaluator(Transformer[Token, Any]):
    def number(self, token: Token) -> float:
        return float(token)

    def text(self, token: Token) -> str:
        return str(token[1:-1])

    def word(self, token: Token) -> Any:
        return {"true": True, "false": False}.get(token, str(token))

    def array(self, *items: Any) -> list[Any]:
        return list(items)

    def either(self, a: Any, b: Any) -> bool:
        return bool(a or b)

    def both(self, a: Any, b: Any) -> bool:
        return bool(a and b)

    def negate(self, a: Any) -> bool:
        return not a

    def minus(self, a: float) -> float:
        return -a

    def eq(self, a: Any, b: Any) -> bool:
        return bool(a == b)

    def ne(self, a: Any, b: Any) -> bool:
        return bool(a != b)

    def lt(self, a: Any, b: Any) -> bool:
        return bool(a < b)

    def le(self, a: Any, b: Any) -> bool:
        return bool(a <= b)

    def gt(self, a: Any, b: Any) -> bool:
        return bool(a > b)

    def ge(self, a: Any, b: Any) -> bool:
        return bool(a >= b)

    def within(self, a: Any, b: Any) -> bool:
        return a in b

    def add(self, a: Any, b: Any) -> Any:
        return a + b

    def sub(self, a: Any, b: Any) -> Any:
        return a - b

    def mul(self, a: Any, b: Any) -> Any:
        return a * b

    def div(self, a: Any, b: Any) -> Any:
        return a / b

    def mod(self, a: Any, b: Any) -> Any:
        return a % b
