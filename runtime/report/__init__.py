"""What a run did, for a person: journal + telemetry -> history -> ledger -> one HTML page.

`read` collects everything a run left (and notes what is missing), `history` and `ledger` are pure functions over it,
`flow` and `charts` compute what is drawn, `page` fills `page.html`. Imports `runtime.job` (the records' types),
`runtime.master.segments` and `runtime.store`. The story begins in `read`.
"""

from runtime.report.history import History, Restart, history
from runtime.report.ledger import Ledger, ledger
from runtime.report.page import render
from runtime.report.read import Run, read_run

__all__ = ["History", "Ledger", "Restart", "Run", "history", "ledger", "read_run", "render"]
