"""The report step: one HTML page of a run, whatever became of it. Runs as the workflow's exit handler."""

from typing import TYPE_CHECKING

from steps.lazy import lazily
from steps.report.config import Config

if TYPE_CHECKING:
    from steps.report.template import on_exit

__all__ = ["Config", "on_exit"]
__getattr__ = lazily("steps.report.template", "on_exit")
