"""Argo's expression languages as grammars: expr-lang (in `{{=...}}`, depends and retries), govaluate (in `when`)."""

from everstep.runtime.workflow.expressions.errors import ExpressionError, ExpressionSyntaxError, UnknownNameError
from everstep.runtime.workflow.expressions.evaluator import ExpandedScope, dotted_paths, evaluate, expand_names, holds

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
