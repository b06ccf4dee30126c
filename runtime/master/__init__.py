"""The master: the IO around the brain. HTTP server, journal, clock, and the loop that creates and deletes nodes.

Start reading in `master.run`. `journaled_brain` feeds events to the brain, journals its decisions, and only then shows
the new state to the others: `endpoints` (the HTTP API), `reconcile` (the nodes), `progress` and `telemetry`.
"""

from everstep.runtime.journal.journal import JournalError, find_master, is_stood_in_for, read_journal
from everstep.runtime.master.master import AgentCommand, CannotListen, Control, ListenAddress, Outcome, run
from everstep.runtime.master.progress import Progress

__all__ = [
    "AgentCommand",
    "CannotListen",
    "Control",
    "JournalError",
    "ListenAddress",
    "Outcome",
    "Progress",
    "find_master",
    "is_stood_in_for",
    "read_journal",
    "run",
]
