"""Argo's expression languages as grammars: expr-lang (in `{{=...}}`, depends and retries), govaluate (in `when`)."""

from everstep.runtime.workflow.expressions.errors import ExpressionError, ExpressionSyntaxError, UnknownNameError
from everstep.runtime.workflow.expressions.evaluator import ExpandedScope, evaluate, expand_names, holds
from everstep.runtime.workflow.expressions.expr_names import dotted_paths

__all__ = [
    "ExpandedScope",
    "ExpressionError",
    "ExpressionSyntaxError",
    "UnknownNameError",
    "dotted_paths",
    "evaluate",
    "expand_names",
    "holds",
]  # fmt: skip
