"""For all tests."""

import gc
import os
import signal
from collections.abc import Generator, Iterator

import hypothesis
import pytest

from tests import minio as minio_servers
from tests import seaweedfs
from tests.control_groups import remove_left_groups
from tests.forks import Forks
from tests.golang import NoGoError
from tests.minio import MinIO
from tests.order import rows
from tests.swap_files import turn_off_left

# A shell starts background jobs with SIGINT ignored, and what they start inherits it: tests that press Ctrl-C mean it.
signal.signal(signal.SIGINT, signal.default_int_handler)

# How long an example takes on a busy machine says nothing of the code. A test scales its own number by tests/examples.
for profile, examples in (("dev", 30), ("ci", 100), ("long", 2000)):
    hypothesis.settings.register_profile(
        profile,
        deadline=None,
        max_examples=examples,
        print_blob=True,
        suppress_health_check=[hypothesis.HealthCheck.too_slow],
    )
hypothesis.settings.load_profile("ci")

# No test talks to a cluster that whoever runs it happens to be logged in to.
for name in [name for name in os.environ if name.startswith(("ARGO_", "KUBE")) and name != "ARGO_EXAMPLES"]:
    del os.environ[name]
os.environ["KUBECONFIG"] = os.devnull
# A test's Spark ends before what the JVM's second compiler and its other collectors prepare pays: two fifths less work.
os.environ.setdefault("JDK_JAVA_OPTIONS", "-XX:TieredStopAtLevel=1 -XX:+UseSerialGC")

FORKS = pytest.StashKey[Forks]()


def pytest_sessionstart(session: pytest.Session) -> None:
    """Called by pytest at its start. A killed run's control groups and swap would be in the way of others' tests."""
    if not hasattr(session.config, "workerinput"):  # One of xdist's workers: who started it has done this.
        remove_left_groups()
        turn_off_left()


@pytest.hookimpl(wrapper=True)
def pytest_collection() -> Generator[None, object, object]:
    """Called by pytest to import all tests. A quarter of that would be looks for garbage, of which it makes none."""
    gc.disable()
    try:
        return (yield)
    finally:
        gc.freeze()  # What was imported stays: nobody looks through it again.
        gc.enable()


@pytest.hookimpl(trylast=True)
def pytest_collection_finish(session: pytest.Session) -> None:
    """Called by pytest before it runs the first test: nothing but imports has happened, and a fork of that is safe."""
    if any("forks" in item.fixturenames for item in session.items if isinstance(item, pytest.Function)):
        session.config.stash[FORKS] = Forks()


@pytest.fixture(scope="session")
def forks(request: pytest.FixtureRequest) -> Iterator[Forks]:
    """The process of which Python programs are forks that need torch."""
    forks = request.config.stash[FORKS]
    yield forks
    forks.close()


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Called by pytest before it runs them."""
    if workers := int(os.environ.get("PYTEST_XDIST_WORKER_COUNT", "0")):
        items[:] = rows(items, lambda item: item.location[0].removeprefix("tests/"), workers)


@pytest.fixture(scope="session")
def minio(tmp_path_factory: pytest.TempPathFactory) -> Iterator[MinIO]:
    """A running MinIO, or the other server that is asked for."""
    kind = seaweedfs if seaweedfs.is_asked() else minio_servers
    try:
        kind.binary()
    except NoGoError as why:
        pytest.skip(str(why))
    with kind.running(tmp_path_factory.mktemp("s3")) as server:
        yield server


@pytest.fixture
def s3(minio: MinIO, monkeypatch: pytest.MonkeyPatch) -> MinIO:
    """That MinIO, with the variables by which this process and its children find it."""
    for name, value in minio.environment.items():
        monkeypatch.setenv(name, value)
    return minio
