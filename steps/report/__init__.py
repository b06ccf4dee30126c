"""The report step: one HTML page of a run, whatever became of it. Runs as the workflow's exit handler."""

from steps.report.config import Config
from steps.report.template import on_exit

__all__ = ["Config", "on_exit"]
