"""Fixtures of the frameworks' tests."""

from tests.trained import trained

__all__ = ["trained"]
