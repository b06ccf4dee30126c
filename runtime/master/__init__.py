"""The master: the shell around the brain. HTTP server, journal, clock, and the loop that makes nodes as wanted.

The story begins in `run.run`. `desk` stands between: it feeds events to the brain, journals what it decides and only
then shows the new state to everybody else.
"""

from everstep.runtime.journal.journal import JournalError, find_master, read_journal
from everstep.runtime.master.master import CannotListen, Outcome, run
from everstep.runtime.master.progress import Progress

__all__ = ["CannotListen", "JournalError", "Outcome", "Progress", "find_master", "read_journal", "run"]
