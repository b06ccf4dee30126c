"""Compares trainings that met faults with an undisturbed one."""

from typing import TYPE_CHECKING

from everstep.steps.lazy import lazily
from everstep.steps.verdict.config import Config

if TYPE_CHECKING:
    from everstep.steps.verdict.template import task

__all__ = ["Config", "task"]
__getattr__ = lazily("everstep.steps.verdict.template", "task")
