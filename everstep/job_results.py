"""`everstep.results`: what a script names as the outcome of its job."""

import os
import sys
from pathlib import Path

from everstep.runtime.data.results import Scalar, Value, write_results
from everstep.runtime.store import open_store


def results(**values: Value | Scalar | Path) -> None:
    """Name results of the job, such as `results(accuracy=0.93, model=Path("out/model"))`.

    A `pathlib.Path` is a file or folder that is copied to the store; a text or a number is kept as it is. Only rank 0's
    calls count. A later call adds to an earlier one, or replaces the same name. The train step prints the results and
    hands them on as its output `results`; the report shows them. Needs no `init`.

    Raises ResultsError (a ValueError) for what cannot be kept, StoreError.
    """
    if os.environ.get("RANK", "0") != "0":
        return
    uri, job = os.environ.get("EVERSTEP_STORE"), os.environ.get("EVERSTEP_JOB")
    if not (uri and job):
        print("everstep: results are kept where EVERSTEP_STORE and EVERSTEP_JOB say; neither is set", file=sys.stderr)
        return
    write_results(open_store(uri), job, values)
