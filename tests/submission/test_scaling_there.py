"""`everstep scale -n NAMESPACE` edits the ConfigMap that the master of a job on a cluster reads."""

import pytest

from everstep.cli import scale
from everstep.cli.main import main
from everstep.runtime.platform.kubernetes import Owner
from everstep.runtime.platform.kubernetes.sizes import STAMP_KEY, TIMEOUT_KEY, parse_sizes, sizes_config_map
from tests.submission.clusters import Cluster

Environment = dict[str, str]


@pytest.fixture
def run(cluster: Cluster, by_kube: Environment, monkeypatch: pytest.MonkeyPatch) -> Cluster:
    """A run with one step that trains, and another's."""
    monkeypatch.setenv("KUBECONFIG", by_kube["KUBECONFIG"])
    uid = cluster.add({"metadata": {"name": "run"}})["metadata"]["uid"]
    for job in (f"{uid}-train", "another-train"):
        config_map = sizes_config_map(job, Owner("run", uid), {"chief": 1, "worker": 2}, {"worker": (2, 5)})
        cluster.config_maps[config_map["metadata"]["name"]] = config_map
    return cluster


def sizes(cluster: Cluster) -> dict[str, int]:
    """What the run's own says, with the other's untouched."""
    mine, other = map(parse_sizes, cluster.config_maps.values())
    assert other == {"chief": 1, "worker": 2}
    return mine


def test_the_roles_number_is_written_and_the_others_stay(run: Cluster, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["scale", "run", "--nodes", "4", "-n", "ml"]) == 0
    assert sizes(run) == {"chief": 1, "worker": 4}
    assert main(["scale", "run/train", "--nodes", "2", "--role", "chief", "-n", "ml"]) == 0
    assert sizes(run) == {"chief": 2, "worker": 4}
    assert "4 worker nodes requested" in capsys.readouterr().err


def test_the_time_that_new_nodes_have_is_written_too_and_goes_with_the_next_request(run: Cluster) -> None:
    def timeouts() -> dict[str, int]:
        return parse_sizes(next(iter(run.config_maps.values())), TIMEOUT_KEY)

    assert main(["scale", "run", "--nodes", "4", "--timeout", "300", "-n", "ml"]) == 0
    assert timeouts() == {"worker": 300}
    assert main(["scale", "run", "--nodes", "5", "-n", "ml"]) == 0
    assert timeouts() == {"worker": 0}
    assert sizes(run) == {"chief": 1, "worker": 5}


def test_the_same_number_is_a_new_request(run: Cluster, monkeypatch: pytest.MonkeyPatch) -> None:
    times = list[int]()
    for now in (100.5, 200.5):
        monkeypatch.setattr(scale, "time", lambda now=now: now)
        assert main(["scale", "run", "--nodes", "4", "-n", "ml"]) == 0
        times += parse_sizes(next(iter(run.config_maps.values())), STAMP_KEY).values()
    assert times == [100, 200]


@pytest.mark.parametrize(
    ("words", "part"),
    [
        (["run", "--role", "boss"], "run: role: the job has no 'boss', only chief, worker"),
        (["run/check"], "run/check: give RUN/STEP with one of its training steps: train"),
        (["gone"], '"gone" not found'),
        (["run", "--nodes", "6"], "run: --nodes 6: worker has at least 2 and at most 5 nodes"),
        (["run", "--timeout", "-1"], "--timeout -1: give seconds, or 0 for the job spec's"),
        (["run", "--nodes", "1"], "run: --nodes 1: worker has at least 2 and at most 5 nodes"),
    ],
)
def test_what_is_not_there_is_one_line(
    run: Cluster, capsys: pytest.CaptureFixture[str], words: list[str], part: str
) -> None:
    assert main(["scale", "--nodes", "2", "-n", "ml", *words]) == 2
    (line,) = capsys.readouterr().err.splitlines()
    assert part in line
    assert sizes(run) == {"chief": 1, "worker": 2}
