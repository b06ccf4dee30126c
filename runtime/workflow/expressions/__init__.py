"""Argo's expression languages as grammars: expr-lang (in `{{=...}}`, depends and retries), govaluate (in `when`)."""

from everstep.runtime.workflow.expressions.errors import ExpressionError, ExpressionSyntaxError, UnknownNameError
from everstep.runtime.workflow.expressions.evaluator import Expanded, evaluate, expand, holds, paths

__all__ = [
    "Expanded", "ExpressionError", "ExpressionSyntaxError", "UnknownNameError", "evaluate", "expand", "holds", "paths",
]  # fmt: skip
