"""Both expression languages by their manuals: what they give, and where they say that something is wrong."""

import ast
import json
import re
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as some

from everstep.runtime.workflow import expressions
from everstep.runtime.workflow.expressions import ExpressionError, evaluate, go_duration
from everstep.runtime.workflow.expressions.bounds import INT_MAX, INT_MIN
from everstep.runtime.workflow.expressions.govaluate import should_run
from everstep.runtime.workflow.expressions.tags import FUNCTIONS

KNOWN = {"inputs.parameters.n": "3", "nothing": None, "list": ["b", "a"], "json": '{"a": [{"b": 5}]}'}


@pytest.mark.parametrize(
    ("text", "value"),
    [
        ("1 + 2 * 3", 7),
        ("7 / 2", 3.5),
        ("7 % 4 == 3 and not false", True),
        ("asInt(inputs.parameters.n) > 2 ? 'many' : 'few'", "many"),
        ("nothing?.more ?? 'none'", "none"),
        ("inputs['parameters']['n'] matches '^[0-9]$'", True),
        ("let n = 2; n * n", 4),
        ("filter(1..4, # % 2 == 0)", [2, 4]),
        ("map(list, {upper(#)}) | join('+')", "B+A"),
        ("list[-1] + list[0:1][0]", "ab"),
        ("{'a': 1}.a", 1),
        ("sprig.trimSuffix('.gz', 'x.tar.gz')", "x.tar"),
        ("sprig.add(1, '2', 3)", 6),
        ("toJson(reverse(list))", '["a","b"]'),
        ("string(jsonpath(json, '$.a[0].b'))", "5"),
    ],
)
def test_an_expression_has_the_value_of_the_manual(text: str, value: Any) -> None:
    assert evaluate(text, KNOWN, FUNCTIONS) == value


ROWS = [json.loads(line) for line in Path(__file__).with_name("expected_values.jsonl").read_text().splitlines()]
"""[expression, value], or [expression] where it is an error: as expr-lang 1.17.7 and sprig 3.3.0, which Argo 4.0 has,
answered in a program of Go with the variables that follow."""
PEOPLE = [{"n": "x", "a": 3}, {"n": "y", "a": 1}, {"n": "z", "a": 3}]
VARIABLES = {"list": ["b", "a"], "nothing": None, "d": {"a": {"b": 1}}, "people": PEOPLE}


@pytest.mark.parametrize("row", ROWS, ids=[row[0] for row in ROWS])
def test_an_expression_has_the_value_that_go_gives_it(row: list[Any]) -> None:
    if len(row) == 1:
        with pytest.raises(ExpressionError):
            evaluate(row[0], VARIABLES, FUNCTIONS)
    else:
        assert json.loads(json.dumps(evaluate(row[0], VARIABLES, FUNCTIONS))) == row[1]


@given(some.integers(INT_MIN, INT_MAX))
def test_a_duration_is_read_as_it_is_written(nanoseconds: int) -> None:
    assert go_duration.parse_duration(go_duration.format_duration(nanoseconds)) == nanoseconds


@pytest.mark.parametrize(
    ("text", "expected_text"),
    [
        ("1 +", "unexpected token EOF (1:3)"),
        ("list +\n unknown", "unknown name unknown (2:2)\n |  unknown\n | .^"),
        ("'a' * 2", "invalid operation: string * int (1:5)"),
        ("list[7]", "index out of range: 7 (array length is 2) (1:5)"),
    ],
)
def test_an_error_says_where(text: str, expected_text: str) -> None:
    with pytest.raises(ExpressionError, match=re.escape(expected_text)):
        evaluate(text, KNOWN)


@pytest.mark.parametrize(
    ("text", "runs"),
    [
        ("'a b' == 'a b'", True),
        ("3 > 2 && !(1 == 2)", True),
        ("heads == tails || heads == heads", True),
        ("x in ('y', 'z')", False),
        ("'main.py' =~ '^main'", True),
        ("10 < 9", False),
        ("2 + 2 == 4 ? true : false", True),
    ],
)
def test_a_when_holds_as_in_the_manual(text: str, runs: bool) -> None:
    assert should_run(text) == runs


@pytest.mark.parametrize(
    ("text", "expected_text"),
    [
        ("a = b", "Invalid 'when' expression 'a = b': Invalid token: '='"),
        ("a b == c", "Cannot transition token types from VARIABLE [a] to VARIABLE [b]"),
        ("1 + 1", "Expected boolean evaluation for '1 + 1'. Got 2"),
    ],
)
def test_a_when_that_says_nothing_is_told(text: str, expected_text: str) -> None:
    with pytest.raises(ExpressionError, match=re.escape(expected_text)):
        should_run(text)


def test_nothing_of_a_manifest_is_run_as_python() -> None:
    for path in Path(str(expressions.__file__)).parent.glob("*.py"):
        called = [node.func for node in ast.walk(ast.parse(path.read_text())) if isinstance(node, ast.Call)]
        assert not {function.id for function in called if isinstance(function, ast.Name)} & {"eval", "exec", "compile"}
