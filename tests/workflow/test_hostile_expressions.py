"""Expressions, conditions and tags: what would fill or stop the launcher is an error of its node."""

from typing import Any

import pytest
import yaml

from everstep.runtime.workflow import ManifestError, parse
from everstep.runtime.workflow.engine.engine import Engine
from everstep.runtime.workflow.engine.events import RunCreated
from everstep.runtime.workflow.expressions import ExpressionError, ExpressionSyntaxError, bounds, evaluate, regexp
from everstep.runtime.workflow.expressions.govaluate import should_run
from everstep.runtime.workflow.expressions.tags import FUNCTIONS, substitute, tags
from everstep.runtime.workflow.lint.lint import findings
from everstep.runtime.workflow.manifest.yaml_source import Document
from tests.workflow import fuzz
from tests.workflow.running import ARGUMENT


def test_what_an_expression_may_cost_does_not_depend_on_what_was_read_before() -> None:
    """Else a log would be folded to another state by the launcher that takes the run up."""
    meters = []
    for _ in range(2):
        with bounds.use_meter() as meter:
            evaluate("len(filter([1, 2, 3], # > 1)) + 77", {})
            meters.append(meter.left)
    assert meters[0] == meters[1] < bounds.EVENT


@pytest.mark.parametrize(
    ("text", "expected_text"),
    [
        ("sprig.repeat(8000000000, 'a')", "memory budget exceeded"),
        ("repeat('a', 1000001)", "memory budget exceeded"),
        ("len(sprig.until(2000000000))", "memory budget exceeded"),
        ("len(map(1..2000000000, {#}))", "memory budget exceeded"),
        ("reduce(1..100, #acc + #acc, 'a')", "memory budget exceeded"),
        ("toJson(reduce(1..100, [#acc, #acc]))", "memory budget exceeded"),
        ("len(filter(1..9000, # in 1..9000))", "memory budget exceeded"),
        ("replace(repeat('a', 9999), 'a', repeat('b', 9999))", "memory budget exceeded"),
        ("sprig.indent(999999999, 'a')", "memory budget exceeded"),
        ("jsonpath(repeat('[', 900) + repeat(']', 900), '$..*..*..*..*')", "memory budget exceeded"),
        ("reduce(1..5000, [#acc])", "recursion depth exceeded"),
        ("len(fromJSON(repeat('[', 200000)))", "invalid character '[' exceeded max depth"),
        ("(" * 10_000 + "1" + ")" * 10_000, "nested deeper than 1000 levels"),
        ("not " * 5_000 + "true", "nested deeper than 1000 levels"),
        ("1" + " + 1" * 30_000, "expression exceeds maximum allowed nodes"),
        ("/*" * 100_000, "unclosed comment"),
        ("99999999999999999999", "integer literal is too large"),
        ("'x' matches '('", "error parsing regexp: missing ): `(`"),
        ("toJson(10.0 ** 999)", "json: unsupported value: +Inf"),
        ("int('" + "1" * 5000 + "')", "invalid operation: int("),
    ],
)
def test_an_expression_that_would_fill_the_launcher_is_an_error(text: str, expected_text: str) -> None:
    with pytest.raises(ExpressionError) as error:
        evaluate(text, {}, FUNCTIONS)
    assert expected_text in str(error.value)


@pytest.mark.parametrize(
    ("text", "value"),
    [
        ("string(10 ** 10 ** 9)", "+Inf"),
        ("bitshl(1, 80000000000)", 0),
        ("9223372036854775807 + 1", -(2**63)),
        ("sprig.mul(9223372036854775807, 2)", -2),
        ("(" * 300 + "1" + ")" * 300, 1),
        ("1" + " + 1" * 5_000, 5_001),
        ("len(uniq(1..300000))", 300_000),
        ("sprig.regexMatch('^(a+)+$', sprig.repeat(999999, 'a') + '!')", False),
        ("sprig.regexReplaceAll('a(x*)b', '-axxb-ab-', '${1}W')", "-xxW-W-"),
        ("sprig.regexSplit('a', 'banana', -1)", ["b", "n", "n", ""]),
        ("sprig.regexFindAll('a*', 'baab', -1)", ["", "aa", ""]),
        ("len(sprig.snakecase(sprig.repeat(999999, 'A')))", 999_999),
    ],
)
def test_arithmetic_and_patterns_are_gos(text: str, value: Any) -> None:
    assert evaluate(text, {}, FUNCTIONS) == value


@pytest.mark.parametrize("pattern", ["(", "a**", "x{1001}", "(?=a)", "\\C", "[z-a]", "(?P<n"])
def test_what_go_takes_for_no_pattern_is_told(pattern: str) -> None:
    with pytest.raises(ExpressionError, match="error parsing regexp: "):
        regexp.matches(pattern, "a")


def test_the_attacks_arguments_fail_their_step_and_nothing_else() -> None:
    for expression in ("string(10 ** 10 ** 9)", "len(map(1..2000000000, {#}))", "(" * 5000 + "1" + ")" * 5000):
        try:
            engine = Engine(parse(ARGUMENT.replace("EXPRESSION", "{{=" + expression + "}}")), RunCreated(0.0, "w", "u"))
        except ManifestError:
            continue
        assert engine.phase.bad or engine.pending_pods(), [
            (node.name, node.phase, node.message) for node in engine.state.nodes.values()
        ]


@pytest.mark.parametrize("text", ["(" * 5_000 + "1 == 1" + ")" * 5_000, " && ".join(["1 == 1"] * 3_000)])
def test_a_when_may_be_nested_and_long(text: str) -> None:
    assert should_run(text)


@pytest.mark.parametrize(
    "text", ["(" * 50_000, "1 << 99999999999 == a", "'a' =~ '('", "2 ** 99999 == a b", "\u00b2 == 1"]
)
def test_a_when_that_is_none_is_told(text: str) -> None:
    with pytest.raises(ExpressionError):
        should_run(text) or should_run("neither")  # Some have a value, which is false.


def test_tags_are_found_in_one_pass() -> None:
    """In calls, not in seconds: half a million braces that nothing closes took minutes."""
    assert tags("{{" * 500_000) == []
    assert substitute("{{" * 500_000, {}) == "{{" * 500_000


def test_tags_write_no_more_than_there_is_room_for() -> None:
    with pytest.raises(ExpressionError, match="the texts of templates are longer than"):
        substitute(["x{{a}}"] * 100, {"a": "b" * (bounds.SUBSTITUTED // 50)})


def test_a_text_that_is_one_tag_is_not_copied() -> None:
    big = "b" * 1_000_000
    assert all(text is big for text in substitute(["{{a}}"] * 10_000, {"a": big}))


def test_the_lint_survives_what_the_executor_refuses() -> None:
    source = yaml.safe_load(ARGUMENT.replace("EXPRESSION", "{{=" + "(" * 5000 + "}}"))
    assert any(
        "nested" in finding.text_with_place or "unexpected token" in finding.text_with_place
        for finding in findings(Document(source, "f"), fuzz.Library())
    )
    with pytest.raises(ExpressionSyntaxError):
        evaluate("(" * 5000, {})
