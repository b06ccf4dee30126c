"""The running cluster, for all tests of this folder: `make test-cluster`."""

from collections.abc import Iterator

import pytest

from tests.cluster import lifecycle
from tests.cluster.lifecycle import Cluster
from tests.golang import NoGoError


@pytest.fixture(scope="session")
def cluster() -> Iterator[Cluster]:
    """Up for as long as tests use it; other users of this machine wait."""
    if why := lifecycle.missing():
        pytest.skip(why)
    try:
        lifecycle.programs()
    except NoGoError as why:
        pytest.skip(str(why))
    with lifecycle.alone():
        try:
            yield lifecycle.up()
        finally:
            lifecycle.down()
