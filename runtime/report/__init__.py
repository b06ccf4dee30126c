"""What a run did, for a person: journal + telemetry -> history -> ledger -> one HTML page.

`read` collects what a run left (and notes what is missing). Pure functions go on: `history` and `causes` say
what happened, `node_lives`, `round_seconds` and `ledger` where each second went, `flow`, `charts` and `timeline`
compute the drawings, `page` fills `page.html`. The story begins in `read`.
"""

from everstep.runtime.report.history import History, Restart, history
from everstep.runtime.report.ledger import Ledger, ledger
from everstep.runtime.report.page import render
from everstep.runtime.report.read import Run, WorkflowFacts, read_job, read_run

__all__ = [
    "History",
    "Ledger",
    "Restart",
    "Run",
    "WorkflowFacts",
    "history",
    "ledger",
    "read_job",
    "read_run",
    "render",
]
