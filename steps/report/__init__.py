"""The report step: one HTML page of a run, whatever its outcome. Runs as the workflow's exit handler."""

from typing import TYPE_CHECKING

from everstep.steps.lazy import lazily
from everstep.steps.report.config import Config

if TYPE_CHECKING:
    from everstep.steps.report.template import on_exit

__all__ = ["Config", "on_exit"]
__getattr__ = lazily("everstep.steps.report.template", "on_exit")
