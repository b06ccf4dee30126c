"""Whatever happens to pods, machines or the master: a training goes on and ends well.

One training suffers all of it, one fault after the other. A long series of those that are short, on a busy machine:

    EVERSTEP_ROUNDS=50 make test-cluster CLUSTER="tests/cluster/test_faults.py -k '(process or pod) and not image'"
"""

import os
from collections.abc import Callable

import pytest

from tests.cluster import faults
from tests.cluster.faults import FAULTS, MASTERS_HOST, MEMORY_MIB
from tests.cluster.trainings import Training
from tests.harness import ROUNDS


@pytest.fixture(scope="module")
def suffering(training: Training) -> Training:
    """Two nodes that train until they are told to stop."""
    training.submit_paced(MASTERS_HOST, faults.spec())
    training.wait_iteration(10)
    return training


@pytest.mark.parametrize("fault", FAULTS)
@pytest.mark.parametrize("_time", range(ROUNDS))
def test_training_goes_on_and_applies_each_sample_once(
    suffering: Training, fault: str, _time: int, record_property: Callable[[str, object], None]
) -> None:
    cost = faults.suffer(suffering, fault)
    assert suffering.in_order()
    record_property("fault", fault)
    record_property("seconds", f"{cost.seconds:.1f}")
    record_property("lost", cost.lost)
    record_property("load", f"{os.getloadavg()[0]:.1f}")


def test_who_ran_out_of_memory_had_got_twice_as_much(suffering: Training) -> None:
    records = suffering.records()
    (killed, *_) = (
        record["node"] for record in records if record["kind"] == "FaultJudged" and record["reason"] == "out of memory"
    )
    (instead,) = (record for record in records if record["kind"] == "NodeRequested" and record["replaces"] == killed)
    assert instead["memory_bytes"] == MEMORY_MIB << 21


def test_it_ends_at_its_last_iteration_and_leaves_no_pod(suffering: Training) -> None:
    suffering.stop()
    assert suffering.finish() == "Succeeded", suffering.last_words()
    (end_record,) = (record for record in suffering.records() if record["kind"] == "JobEnded")
    assert end_record["iteration"] - suffering.iteration() in (
        0,
        1,
    )  # The loop is left before it tells of its last one.
    assert suffering.in_order()
    assert suffering.nodes() == {}
