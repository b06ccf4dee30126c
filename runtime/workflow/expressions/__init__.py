"""Argo's expression languages as grammars: expr-lang (in `{{=...}}`, depends and retries), govaluate (in `when`)."""

from runtime.workflow.expressions.errors import ExpressionError, ExpressionSyntaxError, UnknownNameError
from runtime.workflow.expressions.evaluator import evaluate, expand, holds, paths

__all__ = ["ExpressionError", "ExpressionSyntaxError", "UnknownNameError", "evaluate", "expand", "holds", "paths"]
