"""`everstep.results`: what a script names as the outcome of its job."""

import os
import sys
from pathlib import Path

from everstep.runtime.data.results import Scalar, Value, write_results
from everstep.runtime.protocol.survivor_link import SPARE_VARIABLE
from everstep.runtime.store import open_store
from everstep.runtime.watch import in_worker
from everstep.runtime.watch.board_fields import EXPORT


def results(**values: Value | Scalar | Path) -> None:
    """Name results of the job, such as `results(accuracy=0.93, model=Path("out/model"))`.

    A `pathlib.Path` names a file or folder, which is copied to the store; text and numbers are kept as they are. Only
    rank 0's calls count. A later call adds to an earlier one, or replaces the same name. The train step prints the
    results and passes them on as its output `results`; the report shows them. Works without `init`.

    Raises ResultsError (a ValueError) for a value that cannot be kept, and StoreError.
    """
    if os.environ.get("RANK", "0") != "0" or SPARE_VARIABLE in os.environ:
        return
    uri, job = os.environ.get("EVERSTEP_STORE"), os.environ.get("EVERSTEP_JOB")
    if not (uri and job):
        print("everstep: results are kept where EVERSTEP_STORE and EVERSTEP_JOB say; neither is set", file=sys.stderr)
        return
    with in_worker.doing(EXPORT):
        write_results(open_store(uri), job, values)
