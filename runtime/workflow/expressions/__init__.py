"""Argo's expression languages as grammars: `expr` (in {{=...}}, depends and retries), `govaluate` (in `when`)."""

from runtime.workflow.expressions.expr import ExpressionError, evaluate, names

__all__ = ["ExpressionError", "evaluate", "names"]
