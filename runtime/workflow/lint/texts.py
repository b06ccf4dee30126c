"""Lint of texts: expressions, conditions, tags that stay as they stand."""

import re
from collections.abc import Iterator, Mapping
from difflib import get_close_matches
from typing import Any

from lark import Tree

from everstep.runtime.workflow.expressions import (
    ExpressionError,
    ExpressionSyntaxError,
    UnknownNameError,
    dotted_paths,
    evaluate,
)
from everstep.runtime.workflow.expressions.expr_grammar import parse
from everstep.runtime.workflow.expressions.govaluate import should_run
from everstep.runtime.workflow.expressions.tags import (
    FUNCTIONS,
    LATE_NAMES,
    for_each_text,
    substitute,
    tags,
    without_tags,
)
from everstep.runtime.workflow.expressions.values import parameter_text
from everstep.runtime.workflow.manifest.depends import Ancestry, DependsError, depends_of, is_satisfied, needs
from everstep.runtime.workflow.manifest.fields import LEAVES, kind_of, list_at
from everstep.runtime.workflow.manifest.library import Library
from everstep.runtime.workflow.manifest.schema import Problem, Where
from everstep.runtime.workflow.manifest.template_walk import (
    TaskAt,
    TemplateAt,
    called_template,
    hooks,
    tasks,
    templates,
)

RawFinding = tuple[str, bool, Problem]
ROOTS = ("workflow", "inputs", "outputs", "tasks", "steps", "item", "pod", "node", "retries", "lastRetry")
_SINGLE = re.compile(r"(?<!\{)\{((?:inputs|workflow|tasks|steps)\.[\w.-]+)\}(?!\})")
_BARE = re.compile(r"(?<![\w{.'\"-])\[?((?:workflow|inputs|tasks|steps)\.[\w.-]+)\]?")
RETRY_SCOPE = {"retries": "0", "lastRetry.exitCode": "1", "lastRetry.status": "Failed", "lastRetry.duration": "1",
         "lastRetry.message": ""}  # fmt: skip


def findings(spec: Mapping[str, Any], library: Library) -> Iterator[RawFinding]:
    """Of every text of the workflow."""
    workflow_scope = {f"workflow.parameters.{e.get('name')}": parameter_text(e.get("value"))
             for e in list_at(spec, "arguments", "parameters") if e.get("value") is not None}  # fmt: skip
    for at in templates(spec):
        entry = at.template.get("name") == spec.get("entrypoint")
        scope = {**workflow_scope, **_known_inputs(at.template, entry)}
        yield from _template_findings(at, scope, spec)
        for task_at in tasks(at):
            yield from _task_findings(task_at, scope, spec, library)
    for name, hook, where in hooks(spec):
        yield from _hook_findings(name, hook, where)


def _known_inputs(template: Mapping[str, Any], entry: bool) -> dict[str, str]:
    """Inputs whose value is known before a run: of the entrypoint, which is called with nothing else."""
    inputs: dict[str, str] = {}
    for parameter in list_at(template, "inputs", "parameters"):
        value = parameter.get("value", parameter.get("default"))
        if entry and value is not None:
            inputs[f"inputs.parameters.{parameter.get('name')}"] = parameter_text(value)
    return inputs


def _template_findings(at: TemplateAt, scope: Mapping[str, str], spec: Mapping[str, Any]) -> Iterator[RawFinding]:
    leaf = kind_of(at.template) in LEAVES
    body = {key: value for key, value in at.template.items() if key not in ("dag", "steps")}
    yield from _tag_findings(body, at, scope, leaf, spec)
    strategy = at.template.get("retryStrategy") or {}
    if strategy.get("expression"):
        yield from _condition_findings(str(strategy["expression"]), (*at.where, "retryStrategy", "expression"))
    for index, entry in enumerate(list_at(at.template, "outputs", "parameters")):
        expression = (entry.get("valueFrom") or {}).get("expression")
        if expression:
            where = (*at.where, "outputs", "parameters", index, "valueFrom", "expression")
            yield from _syntax_findings(str(expression), where)
    for index, metric in enumerate(list_at(at.template, "metrics", "prometheus")):
        when = str(metric.get("when") or "")
        if when:
            yield from _when_findings(when, (*at.where, "metrics", "prometheus", index, "when"), {}, error=False)


def _syntax_findings(expression: str, where: Where) -> Iterator[RawFinding]:
    try:
        parse(expression)
    except ExpressionSyntaxError as error:
        yield "expression", True, Problem(where, _first_line(error))


def _first_line(error: Exception) -> str:
    return str(error).splitlines()[0]


def _tag_findings(
    value: Any, at: TemplateAt, scope: Mapping[str, str], leaf: bool, spec: Mapping[str, Any]
) -> Iterator[RawFinding]:
    """Every tag of a template's own texts."""
    for tag in dict.fromkeys(tags(value)):
        if tag.startswith("="):
            yield from _expression_findings(tag[1:], at, scope, leaf, spec)
        else:
            yield from _simple_tag_findings(tag.strip(), at, leaf)
    texts: list[str] = []
    for_each_text(value, texts.append)
    for name in dict.fromkeys(name for text in texts for name in _SINGLE.findall(text)):
        yield "tag", False, Problem(at.where, f"{{{name}}} is plain text; a tag has two braces: {{{{{name}}}}}")


def _simple_tag_findings(name: str, at: TemplateAt, leaf: bool) -> Iterator[RawFinding]:
    root = re.split(r"[.\[]", name)[0]
    if leaf and root == "item":
        yield (
            "item",
            False,
            Problem(at.where, f"{{{{{name}}}}} is known to the task that loops; pass it as an argument"),
        )
    near = get_close_matches(root, ROOTS, 1, 0.8)
    if root not in ROOTS and near and "." in name:
        yield "tag", False, Problem(at.where, f"{{{{{name}}}}} is not replaced; did you mean {near[0]}?")
    parts = name.split(".")
    if root == "outputs" and len(parts) == 4 and parts[3] == "path":
        declared_outputs = {str(output.get("name")) for output in list_at(at.template, "outputs", parts[1])}
        if parts[2] not in declared_outputs:
            yield "tag", False, Problem(at.where, f"{{{{{name}}}}}: the template has no such output")


def _expression_findings(
    text: str, at: TemplateAt, scope: Mapping[str, str], leaf: bool, spec: Mapping[str, Any]
) -> Iterator[RawFinding]:
    """One `{{=...}}` of a template."""
    try:
        read = dotted_paths(text)
    except ExpressionSyntaxError as error:
        yield "expression", True, Problem(at.where, f"{{{{={text}}}}}: {_first_line(error)}")
        return
    if "?" in text:
        return
    input_names = {
        f"inputs.parameters.{parameter.get('name')}" for parameter in list_at(at.template, "inputs", "parameters")
    }
    workflow_parameters = {
        f"workflow.parameters.{parameter.get('name')}" for parameter in list_at(spec, "arguments", "parameters")
    }
    for path in sorted(read):
        for prefix, declared_names in (
            ("inputs.parameters.", input_names),
            ("workflow.parameters.", workflow_parameters),
        ):
            if path.startswith(prefix) and path not in declared_names and path != f"{prefix}json":
                yield (
                    "expression",
                    False,
                    Problem(at.where, f"{{{{={text}}}}}: {path} is unknown: the tag is not replaced"),
                )
                return
    try:
        late = any(path == late_name or path.startswith(f"{late_name}.") for late_name in LATE_NAMES for path in read)
        if not late and (read <= scope.keys() or not any(path.split(".")[0] in ROOTS for path in read)):
            evaluate(text, scope, FUNCTIONS)
    except UnknownNameError as error:
        yield (
            "expression",
            False,
            Problem(at.where, f"{{{{={text}}}}}: {_first_line(error)}: the tag is not replaced"),
        )
    except ExpressionError as error:
        kind = "the tag is not replaced" if leaf else "the task fails"
        yield "expression", False, Problem(at.where, f"{{{{={text}}}}}: {_first_line(error)}: {kind}")


def _condition_findings(text: str, where: Where) -> Iterator[RawFinding]:
    """A retryStrategy.expression."""
    if "{{" in text:
        return
    try:
        value = evaluate(text, RETRY_SCOPE, FUNCTIONS)
    except (ExpressionSyntaxError, UnknownNameError) as error:
        yield "expression", True, Problem(where, _first_line(error))
        return
    except ExpressionError:
        return
    if not isinstance(value, bool):
        yield "expression", True, Problem(where, "is not a condition: its value is not a boolean")
    elif _compares_text(parse(text)):
        yield "expression", True, Problem(where, "compares a text with a number; write asInt(lastRetry.exitCode)")


def _compares_text(tree: Any) -> bool:
    """`lastRetry.exitCode == 3`: the left is a text."""
    if not isinstance(tree, Tree):
        return False
    if tree.data == "binary" and str(tree.children[1]) in ("==", "!="):
        sides = [tree.children[0], tree.children[2]]
        kinds = [side.data if isinstance(side, Tree) else "" for side in sides]
        texts = any(
            kind == "member" and str(s.children[-1].children[0]) == "exitCode"
            for kind, s in zip(kinds, sides, strict=True)
        )
        if texts and "integer" in kinds:
            return True
    return any(map(_compares_text, tree.children))


def _task_findings(
    task_at: TaskAt, scope: Mapping[str, str], spec: Mapping[str, Any], library: Library
) -> Iterator[RawFinding]:
    task, where = task_at.task, task_at.where
    body = {key: value for key, value in task.items() if key not in ("inline", "hooks")}
    at = TemplateAt(task_at.holder.template, where)
    yield from _tag_findings(body, at, scope, False, spec)
    when = str(task.get("when") or "")
    if when:
        yield from _when_findings(when, (*where, "when"), scope, error=True)
    if task.get("depends"):
        yield from _depends_findings(task_at)
    yield from _order_findings(task_at, spec, library)
    is_looped = any(task.get(kind) for kind in ("withItems", "withParam", "withSequence"))
    if not is_looped and any(re.split(r"[.\[]", tag.strip())[0] == "item" for tag in tags(body)):
        yield "item", False, Problem(where, "{{item}} has no effect without withItems, withParam or withSequence")


def _when_findings(text: str, where: Where, scope: Mapping[str, str], error: bool) -> Iterator[RawFinding]:
    for name in _BARE.findall(without_tags(text)):
        yield "when", False, Problem(where, f"{name} is a word; a tag has braces: {{{{{name}}}}}")
    try:
        condition = str(substitute(text, scope))
    except ExpressionError:
        return  # The expression in it has a finding of its own.
    try:
        should_run(without_tags(condition, "x"))
    except ExpressionError as wrong:
        if not tags(condition) or "Invalid 'when'" in str(wrong):
            mend = "; put quotes around what may be empty or have spaces" if "Invalid" in str(wrong) else ""
            yield "when", error, Problem(where, f"{_first_line(wrong)}{mend}")


def _depends_findings(task_at: TaskAt) -> Iterator[RawFinding]:
    every = {str(task.get("name")): task for task in list_at(task_at.holder.template, "dag", "tasks")}
    text = depends_of(task_at.task, every)
    try:
        is_satisfied(text, {name: {} for name, _ in needs(text)})
    except DependsError as error:
        yield "depends", True, Problem((*task_at.where, "depends"), _first_line(error))


def _order_findings(task_at: TaskAt, spec: Mapping[str, Any], library: Library) -> Iterator[RawFinding]:
    """A task may read only what it waits for, and what that gives."""
    if task_at.prefix != "tasks":
        return
    every = {str(task.get("name")): task for task in list_at(task_at.holder.template, "dag", "tasks")}
    waits = {name: {need for need, _ in needs(depends_of(task, every))} for name, task in every.items()}
    ancestors, own = Ancestry(waits), str(task_at.task.get("name"))
    body = {key: value for key, value in task_at.task.items() if key not in ("inline", "hooks")}
    for tag in tags(body):
        names = _known_paths(tag[1:]) if tag.startswith("=") else {tag.strip()}
        for name in sorted(names):
            parts = name.split(".")
            if parts[0] != "tasks" or len(parts) < 3 or parts[1] not in every:
                continue
            if not ancestors.is_ancestor(own, parts[1]):
                message = f"reads {name}, but does not wait for {parts[1]}; add it to depends"
                yield "order", True, Problem(task_at.where, message)
            elif tag.startswith("=") and parts[2:4] == ["outputs", "parameters"] and len(parts) == 5 and "?" not in tag:
                template = called_template(every[parts[1]], spec, library) or {}
                declared_outputs = {
                    str(parameter.get("name")) for parameter in list_at(template, "outputs", "parameters")
                }
                if parts[4] not in declared_outputs:
                    yield "order", True, Problem(task_at.where, f"{parts[1]} has no output parameter {parts[4]}")


def _known_paths(expression: str) -> frozenset[str]:
    try:
        return dotted_paths(expression)
    except ExpressionError:
        return frozenset()


def _hook_findings(name: str, hook: Mapping[str, Any], where: Where) -> Iterator[RawFinding]:
    if hook.get("expression"):
        yield from _syntax_findings(str(hook["expression"]), (*where, "expression"))
    elif name != "exit":
        yield "hook", True, Problem(where, "needs an expression; only the hook named exit has none")
