"""The keeper's decisions: over every order of events, in virtual time."""

import argparse
from collections.abc import Callable, Iterator, Mapping

from benchmarks.acceptance import Line

PROVEN: Mapping[str, tuple[str, ...]] = {
    "keeper: no order of events tears or loses a state, or leaves a question unanswered or a slot pinned": (
        "test_keeper_core.py::test_no_order_of_events",
    ),
    "keeper: a question that its phase does not take is refused with one line": (
        "test_keeper_core.py::test_a_question_that_the_phase_does_not_take",
    ),
    "keeper: an unlisted event of a slot raises; what proved wrong is offered to nobody": (
        "test_slots.py::test_an_event_that_the_table_does_not_list",
        "test_slots.py::test_what_proves_wrong",
    ),
}
MEASURED: Mapping[str, Callable[[argparse.Namespace], Iterator[Line]]] = {}
