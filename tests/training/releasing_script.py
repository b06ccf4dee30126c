"""A survivor that leaves its round after its last iteration, and whose agent ends the round while it releases its
groups: none is aborted then.
"""

import os
import threading
from functools import partial

from everstep import group_sockets, reentry
from everstep.group_sockets import GroupSockets
from everstep.reentry import _Rounds
from everstep.runtime.protocol.survivor_link import RoundEnded
from tests.training.kept_reader_script import Link

TIMEOUT_S = 30.0


def main() -> None:
    """Ends with 0 if no group was aborted."""
    os.environ["EVERSTEP_ROUND"] = "1"
    link, is_cut, aborted, cut = Link(), threading.Event(), list[str](), GroupSockets.cut

    def cut_and_say(self: GroupSockets) -> None:
        cut(self)
        is_cut.set()

    def release() -> None:
        link.messages.put((RoundEnded(1), []))
        assert is_cut.wait(TIMEOUT_S), "the end of the round waits for the release of its groups"

    group_sockets._abort_groups = partial(aborted.append, "a group")
    GroupSockets.cut, reentry.leave = cut_and_say, release
    rounds = _Rounds(link)  # type: ignore[arg-type]
    rounds.leave()
    assert not aborted
    os._exit(0)


if __name__ == "__main__":
    main()
