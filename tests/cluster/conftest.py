"""The running cluster, for all tests of this folder: `make test-cluster`."""

import signal
from collections.abc import Iterator

import pytest

from tests.cluster import lifecycle
from tests.cluster.lifecycle import Cluster
from tests.cluster.trainings import Training, dataset_in
from tests.golang import NoGoError
from tests.harness import busy


@pytest.fixture(scope="session", autouse=True)
def busy_machine() -> Iterator[None]:
    """In a soak."""
    with busy():
        yield


@pytest.fixture(scope="session")
def cluster() -> Iterator[Cluster]:
    """Up for as long as tests use it; other users of this machine wait."""
    if why := lifecycle.missing():
        pytest.skip(why)
    try:
        lifecycle.programs()
    except NoGoError as why:
        pytest.skip(str(why))
    signal.signal(signal.SIGTERM, signal.default_int_handler)  # Whoever ends a run so leaves no cluster behind.
    with lifecycle.alone():
        try:
            yield lifecycle.up()
        finally:
            lifecycle.down()


@pytest.fixture(scope="module")
def dataset(cluster: Cluster, tmp_path_factory: pytest.TempPathFactory) -> str:
    """A small dataset in the cluster's store."""
    return dataset_in(cluster, tmp_path_factory.mktemp("dataset"))


@pytest.fixture(scope="module")
def training(cluster: Cluster, dataset: str) -> Iterator[Training]:
    """A training to submit, one for the tests of a module; whatever is left of it is deleted."""
    new_training = Training(cluster, dataset)
    yield new_training
    new_training.delete()
