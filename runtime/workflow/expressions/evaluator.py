"""The meaning of expr-lang: `evaluate(text, environment)` over Python's own None, bool, int, float, str, list and dict.

Names and functions are looked up before anything is computed, as expr-lang's compiler does it.
"""

from collections.abc import Mapping
from typing import Any, NamedTuple

from lark import Token, Tree

from everstep.runtime.workflow.expressions.bounds import (
    CALL,
    CHARACTERS_A_STEP,
    EVALUATION,
    Meter,
    check_int64,
    evaluation_meter,
    use_meter,
)
from everstep.runtime.workflow.expressions.builtins import BUILTINS, CONSTANT_TIME, PREDICATES
from everstep.runtime.workflow.expressions.errors import (
    ExpressionError,
    ExpressionSyntaxError,
    UnknownNameError,
    point_at,
)
from everstep.runtime.workflow.expressions.expr_grammar import unquote
from everstep.runtime.workflow.expressions.expr_names import node_position, parse_with_names, word_text
from everstep.runtime.workflow.expressions.operations import OPERATIONS, NoSuchOperationError, is_number
from everstep.runtime.workflow.expressions.values import go_text, go_type


class PredicateItem(NamedTuple):
    """The values of `#`, `#index` and `#acc` inside of a predicate."""

    value: Any
    index: int = 0
    accumulated: Any = None


class ExpandedScope(dict[str, Any]):
    """An environment whose dotted names are expanded to maps."""


def evaluate(text: str, environment: Mapping[str, Any], functions: Mapping[str, Any] = {}) -> Any:
    """The value of an expression; dotted names of the environment are expanded to maps first.

    `functions` are callables by name, or maps of them (sprig.). Raises ExpressionSyntaxError, UnknownNameError where
    a name or function is not bound, ExpressionError where the values do not fit, or the bounds are passed.
    """
    with use_meter() as event, evaluation_meter(event) as meter:
        meter.spend(EVALUATION)
        tree, names = parse_with_names(text)
        expanded_scope = environment if isinstance(environment, ExpandedScope) else expand_names(environment)
        for place, name in names:
            if name not in expanded_scope and name not in functions:
                raise UnknownNameError(point_at(f"unknown name {name}", text, place))
        value = _Evaluation(text, expanded_scope, {**BUILTINS, **functions}, meter).evaluate(tree, None)
        meter.weigh(value)
    return value


def holds(text: str, environment: Mapping[str, Any], functions: Mapping[str, Any] = {}) -> bool:
    """A condition, as Argo's hooks and retries judge it. Raises ExpressionError in its words."""
    try:
        value = evaluate(text, environment, functions)
    except (ExpressionSyntaxError, UnknownNameError):
        raise
    except ExpressionError as error:
        raise ExpressionError(f"unable to evaluate expression '{text}': {error}") from None
    if not isinstance(value, bool):
        value_text = value if isinstance(value, str) else f"%!s({go_type(value)}={go_text(value)})"
        raise ExpressionError(f"unable to cast expression result '{value_text}' to bool")
    return value


def expand_names(environment: Mapping[str, Any]) -> ExpandedScope:
    """`{"a.b": 1}` as `{"a": {"b": 1}}`; where a name is both, the map is kept."""
    expanded_scope = ExpandedScope()
    for key, value in environment.items():
        place: dict[str, Any] = expanded_scope
        path, _, last = key.rpartition(".")
        for part in path.split(".") if path else ():
            inner = place.get(part)
            if not isinstance(inner, dict):
                inner = place[part] = {}
            place = inner
        if not isinstance(place.get(last), dict):
            place[last] = value
    return expanded_scope


class _Evaluation:
    """One evaluation."""

    def __init__(self, text: str, environment: Mapping[str, Any], functions: Mapping[str, Any], meter: Meter) -> None:
        self._source = text
        self._meter = meter
        self._environment = dict(environment)
        self._functions = functions

    def evaluate(self, node: Any, pointer: PredicateItem | None) -> Any:
        """The value of a tree; `pointer`: what `#` stands for."""
        self._meter.spend(1)
        return getattr(self, f"_{node.data}")(node.children, pointer, node)

    def _fail(self, message: str, node: Any) -> ExpressionError:
        return ExpressionError(point_at(message, self._source, node_position(node)))

    def _let(self, c: list[Any], pointer: PredicateItem | None, node: Any) -> Any:
        self._meter.spend(len(self._environment) // CHARACTERS_A_STEP)
        environment = {**self._environment, str(c[1]): self.evaluate(c[3], pointer)}
        return _Evaluation(self._source, environment, self._functions, self._meter).evaluate(c[5], pointer)

    def _ternary(self, c: list[Any], pointer: PredicateItem | None, node: Any) -> Any:
        return self.evaluate(c[2] if self._boolean(c[0], pointer) else c[4], pointer)

    def _if_else(self, c: list[Any], pointer: PredicateItem | None, node: Any) -> Any:
        return self.evaluate(c[3] if self._boolean(c[1], pointer) else c[7], pointer)

    def _elvis(self, c: list[Any], pointer: PredicateItem | None, node: Any) -> Any:
        first = self.evaluate(c[0], pointer)
        return self.evaluate(c[3], pointer) if first in (None, False) else first

    def _parentheses(self, c: list[Any], pointer: PredicateItem | None, node: Any) -> Any:
        return self.evaluate(c[1], pointer)

    def _boolean(self, node: Any, pointer: PredicateItem | None) -> bool:
        value = self.evaluate(node, pointer)
        if not isinstance(value, bool):
            raise self._fail(f"interface conversion: interface {{}} is {go_type(value)}, not bool", node)
        return value

    def _either(self, c: list[Any], pointer: PredicateItem | None, node: Any) -> bool:
        return any(self._boolean(child, pointer) for child in c[::2])

    def _both(self, c: list[Any], pointer: PredicateItem | None, node: Any) -> bool:
        return all(self._boolean(child, pointer) for child in c[::2])

    def _negate(self, c: list[Any], pointer: PredicateItem | None, node: Any) -> bool:
        return not self._boolean(c[1], pointer)

    def _coalesce(self, c: list[Any], pointer: PredicateItem | None, node: Any) -> Any:
        first = self.evaluate(c[0], pointer)
        return self.evaluate(c[2], pointer) if first is None else first

    def _sign(self, c: list[Any], pointer: PredicateItem | None, node: Any) -> Any:
        value = self.evaluate(c[1], pointer)
        if not is_number(value):
            raise self._fail(f"invalid operation: {c[0]} {go_type(value)}", node)
        return -value if c[0] == "-" else value

    def _binary(self, c: list[Any], pointer: PredicateItem | None, node: Any) -> Any:
        """One operator, or several of one rank, from the left."""
        value = self.evaluate(c[0], pointer)
        for operator, right in zip(c[1::2], c[2::2], strict=True):
            value = self._operate(value, operator, self.evaluate(right, pointer))
        return value

    def _operate(self, a: Any, operator: Token, b: Any) -> Any:
        self._meter.weigh(a)
        self._meter.weigh(b)
        try:
            return OPERATIONS[str(operator)](a, b)
        except NoSuchOperationError:
            raise self._fail(f"invalid operation: {go_type(a)} {operator} {go_type(b)}", operator) from None
        except ZeroDivisionError:
            raise self._fail("integer divide by zero", operator) from None
        except ExpressionError as error:
            raise self._fail(str(error), operator) from None

    def _negated_binary(self, c: list[Any], pointer: PredicateItem | None, node: Any) -> bool:
        return not self._binary([c[0], c[2], c[3]], pointer, node)

    def _member(self, c: list[Any], pointer: PredicateItem | None, node: Any) -> Any:
        of, name = self.evaluate(c[0], pointer), word_text(c[-1])
        if isinstance(of, dict):
            return of.get(name)
        raise self._fail(f"cannot fetch {name} from {go_type(of)}", c[-1])

    def _optional_member(self, c: list[Any], pointer: PredicateItem | None, node: Any) -> Any:
        return None if self.evaluate(c[0], pointer) is None else self._member(c, pointer, node)

    def _pointer_member(self, c: list[Any], pointer: PredicateItem | None, node: Any) -> Any:
        of = pointer.value if pointer else None
        if isinstance(of, dict):
            return of.get(word_text(c[-1]))
        raise self._fail(f"cannot fetch {word_text(c[-1])} from {go_type(of)}", c[-1])

    def _index(self, c: list[Any], pointer: PredicateItem | None, node: Any) -> Any:
        of, key = self.evaluate(c[0], pointer), self.evaluate(c[2], pointer)
        if isinstance(of, dict):
            return None if isinstance(key, list | dict) else of.get(key)
        if isinstance(of, list | str) and isinstance(key, int) and not isinstance(key, bool):
            if -len(of) <= key < len(of):
                return of[key]
            raise self._fail(f"index out of range: {key} (array length is {len(of)})", c[1])
        raise self._fail(f"cannot fetch {key} from {go_type(of)}", c[2])

    def _optional_index(self, c: list[Any], pointer: PredicateItem | None, node: Any) -> Any:
        return None if self.evaluate(c[0], pointer) is None else self._index([c[0], *c[2:]], pointer, node)

    def _slice(self, c: list[Any], pointer: PredicateItem | None, node: Any) -> Any:
        of = self.evaluate(c[0], pointer)
        if not isinstance(of, list | str):
            raise self._fail(f"cannot slice {go_type(of)}", node)
        self._meter.spend(len(of) // CHARACTERS_A_STEP)
        ends = [None if part is None else self.evaluate(part, pointer) for part in (c[2], c[4])]
        if any(end is not None and (not isinstance(end, int) or isinstance(end, bool)) for end in ends):
            raise self._fail("invalid operation: slice index is not an integer", node)
        return of[ends[0] : ends[1]]

    def _pipe(self, c: list[Any], pointer: PredicateItem | None, node: Any) -> Any:
        rest = c[4] if len(c) > 4 else None
        if c[2].type == "PREDICATED":
            raise self._fail(f"a pipe into {c[2]} is not supported here; write {c[2]}(...)", c[2])
        return self._call_function(
            str(c[2]), c[2], [self.evaluate(c[0], pointer), *self._argument_values(rest, pointer)]
        )

    def _call(self, c: list[Any], pointer: PredicateItem | None, node: Any) -> Any:
        callee = c[0]
        if callee.data == "name":
            return self._call_function(str(callee.children[0]), callee, self._argument_values(c[2], pointer))
        if callee.data == "member" and callee.children[0].data == "name":
            group, name = str(callee.children[0].children[0]), word_text(callee.children[-1])
            if isinstance(self._functions.get(group), Mapping):
                return self._call_function(f"{group}.{name}", callee, self._argument_values(c[2], pointer))
        raise self._fail("this is not a function", callee)

    def _call_function(self, name: str, place: Any, arguments: list[Any]) -> Any:
        group, _, member = name.partition(".")
        function = self._functions.get(group)
        if member:
            function = function.get(member) if isinstance(function, Mapping) else None
        if function is None:
            raise UnknownNameError(point_at(f"unknown name {name}", self._source, node_position(place)))
        self._meter.spend(CALL)
        for argument in arguments if name not in CONSTANT_TIME else ():
            self._meter.weigh(argument)
        try:
            value = function(*arguments)
        except ExpressionError as error:
            raise self._fail(str(error), place) from None
        except (TypeError, ValueError, AttributeError, IndexError, KeyError, ArithmeticError) as error:
            raise self._fail(f"{name}: {error}", place) from None
        if isinstance(value, str | list | dict):
            self._meter.spend(len(value) // CHARACTERS_A_STEP)
        return value

    def _argument_values(self, arguments: Any, pointer: PredicateItem | None) -> list[Any]:
        if arguments is None:
            return []
        return [self.evaluate(child, pointer) for child in arguments.children if isinstance(child, Tree)]

    def _predicate_call(self, c: list[Any], pointer: PredicateItem | None, node: Any) -> Any:
        first, *rest = [child for child in c[2].children if isinstance(child, Tree)]
        over = self.evaluate(first, pointer)
        if not isinstance(over, list):
            raise self._fail(f"builtin {c[0]} takes only array (got {go_type(over)})", c[0])
        self._meter.spend(len(over))
        body = next((child for child in rest[0].children if isinstance(child, Tree)), None) if rest else None

        def predicate(item: Any, index: int, accumulator: Any = None) -> Any:
            return self.evaluate(body, PredicateItem(item, index, accumulator))

        try:
            return PREDICATES[str(c[0])](
                over, predicate if body else None, *[self.evaluate(more, pointer) for more in rest[1:]]
            )
        except ExpressionError:
            raise
        except (TypeError, ValueError, ArithmeticError) as error:
            raise self._fail(f"{c[0]}: {error}", c[0]) from None

    def _pointer(self, c: list[Any], pointer: PredicateItem | None, node: Any) -> Any:
        if pointer is None:
            raise self._fail("cannot use pointer accessor outside predicate", node)
        return {"": pointer.value, "index": pointer.index, "acc": pointer.accumulated}[str(c[0])[1:]]

    def _integer(self, c: list[Any], pointer: PredicateItem | None, node: Any) -> int:
        try:
            return check_int64(int(str(c[0]).replace("_", ""), 0 if str(c[0])[1:2].isalpha() else 10))
        except ValueError:
            raise self._fail("integer literal is too large", c[0]) from None

    def _real(self, c: list[Any], pointer: PredicateItem | None, node: Any) -> float:
        return float(str(c[0]).replace("_", ""))

    def _text(self, c: list[Any], pointer: PredicateItem | None, node: Any) -> str:
        return unquote(str(c[0]))

    def _name(self, c: list[Any], pointer: PredicateItem | None, node: Any) -> Any:
        name = str(c[0])
        constants = {"true": True, "false": False, "nil": None}
        return constants[name] if name in constants else self._environment.get(name)

    def _array(self, c: list[Any], pointer: PredicateItem | None, node: Any) -> list[Any]:
        return self._argument_values(c[1], pointer)

    def _mapping(self, c: list[Any], pointer: PredicateItem | None, node: Any) -> dict[Any, Any]:
        mapping = {}
        for pair in c:
            if isinstance(pair, Tree):
                key: Any = pair.children[0]
                value = pair.children[-1]
                if pair.data == "computed_pair":
                    name = self.evaluate(pair.children[1], pointer)
                else:
                    name = unquote(str(key)) if key.type == "STRING" else str(key)
                if not isinstance(name, str):
                    raise self._fail(f"interface conversion: interface {{}} is {go_type(name)}, not string", node)
                mapping[name] = self.evaluate(value, pointer)
        return mapping
