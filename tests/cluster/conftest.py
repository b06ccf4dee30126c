"""The running cluster, for all tests of this folder: `make test-cluster`."""

from collections.abc import Iterator

import pytest

from tests.cluster import argo, corpora, lifecycle, processes
from tests.cluster.argo import ByArgo
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
    with lifecycle.brought_up() as running_cluster:
        yield running_cluster


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


@pytest.fixture(scope="module")
def controller(cluster: Cluster) -> Iterator[None]:
    """Argo's own, for the tests that ask for it; others have Workflows that nobody shall act on."""
    try:
        argo.install(cluster.kubectl)
    except NoGoError as why:
        pytest.skip(str(why))
    yield
    processes.stop("argo")


@pytest.fixture
def by_argo(cluster: Cluster, dataset: str) -> Iterator[ByArgo]:
    """A train step of Argo's; whatever is left of it is deleted."""
    new_training = ByArgo(cluster, dataset)
    try:
        yield new_training
    finally:
        new_training.delete()


@pytest.fixture(scope="module")
def lines() -> bytes:
    """A small corpus."""
    return corpora.lines()


@pytest.fixture(scope="module")
def text(cluster: Cluster) -> str:
    """Its URI."""
    return corpora.corpus_in(cluster)
