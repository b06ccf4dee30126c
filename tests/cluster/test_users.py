"""What users of a cluster do: the verbs for runs, Argo's own command, and runs that are begun without a pipeline."""

import json
import secrets
from collections.abc import Iterator, Mapping
from typing import Any

import pytest

from everstep.runtime.checkpoint.stored.verify import StoredCheckpoint, list_checkpoints
from tests.cluster import argo, faults, images
from tests.cluster.argo import ByArgo
from tests.cluster.commands import everstep, run_python
from tests.cluster.costs import cost
from tests.cluster.layout import NAMESPACE, NODES, node_name
from tests.cluster.lifecycle import Cluster
from tests.cluster.namespace import SERVICE_ACCOUNT, STORE_SECRET
from tests.cluster.plane import BUCKET
from tests.cluster.trainings import PATIENCE_S
from tests.golang import NoGoError
from tests.harness import wait_until

pytestmark = pytest.mark.usefixtures("controller")
THERE = ("--namespace", NAMESPACE)
WAYS: Mapping[str, Mapping[str, str]] = {"kube context": {}, "Argo's server": argo.SERVER}
FOR_STEPS = ("--image", images.HOST, "--service-account", SERVICE_ACCOUNT, "--store-secret", STORE_SECRET)
NEVER = "1000000"


@pytest.fixture(params=WAYS)
def way(request: pytest.FixtureRequest, cluster: Cluster) -> Mapping[str, str]:
    """The variables of a user who reaches the cluster so."""
    if WAYS[request.param]:
        start_server()
    return WAYS[request.param]


def start_server() -> None:
    """Argo's, unless it runs."""
    try:
        argo.start_server()
    except NoGoError as why:
        pytest.skip(str(why))


def begin(run: ByArgo) -> ByArgo:
    """Until it trains."""
    run.submit_paced("", faults.spec())
    run.wait_iteration(10)
    return run


def last_iteration(run: ByArgo) -> int:
    """Of a run whose pods have all ended; they are in the store."""
    wait_until(lambda: not run.nodes(), "the end of every pod", PATIENCE_S, pause_s=0.2)
    assert run.not_stored() == 0
    return max([run.iteration(), *(record["iteration"] for record in run.records_of("JobEnded"))])


def wait_until_ended(run: ByArgo) -> None:
    """Until the pods of the step have ended: Argo's own retry takes one that is still there for the new one."""
    wait_until(
        lambda: all(pod["status"].get("phase") in argo.ENDED for pod in run.steps()), "the step's pods", PATIENCE_S, 0.2
    )


def require_nothing_again(run: ByArgo, records_before: int, iterations: int, since: float) -> None:
    """It goes on after those iterations."""
    faults.goes_on(run)
    (first, *_) = (record["round"] for record in run.records()[records_before:] if record["kind"] == "RoundFormed")
    assert first["restore"]["iteration"] >= iterations
    assert cost(run.reports(), since).lost == 0
    assert run.in_order()


def end_well(run: ByArgo) -> None:
    """Its script is told to end."""
    run.stop()
    assert run.finish() == "Succeeded", run.last_words()


def test_a_run_is_listed_shown_read_stopped_and_retried_without_an_iteration_again(
    by_argo: ByArgo, way: Mapping[str, str]
) -> None:
    cluster, name = by_argo.cluster, begin(by_argo).name

    def verb(*words: str) -> str:
        completed = everstep(cluster, "workflow", *words, *THERE, variables=way)
        assert completed.returncode == 0, completed.stderr
        return completed.stdout + completed.stderr

    assert [line.split()[:2] for line in verb("list").splitlines() if name in line] == [[name, "Running"]]
    view = verb("get", name)
    assert "Running" in view
    assert by_argo.pod in view
    lines = verb("logs", name)
    assert f"{by_argo.pod}: " in lines
    assert any(f"\n{node}: " in lines for node in by_argo.nodes()) != bool(way), "an Argo Server shows no nodes' lines"
    assert "asked Argo to stop" in verb("stop", name)
    assert by_argo.finish() == "Failed"
    records_before, trained_to = len(by_argo.records()), last_iteration(by_argo)
    (end_record,) = by_argo.records_of("JobEnded")
    if way:
        wait_until_ended(by_argo)
    assert "asked Argo to retry" in verb("retry", name)
    require_nothing_again(by_argo, records_before, trained_to, end_record["time"])
    end_well(by_argo)


def test_argos_own_command_stops_and_retries_a_run_without_an_iteration_again(by_argo: ByArgo) -> None:
    name = begin(by_argo).name
    try:
        argo.run_argo("stop", name)
    except NoGoError as why:
        pytest.skip(str(why))
    assert by_argo.finish() == "Failed"
    records_before, trained_to = len(by_argo.records()), last_iteration(by_argo)
    (end_record,) = by_argo.records_of("JobEnded")
    wait_until_ended(by_argo)
    argo.run_argo("retry", name)
    require_nothing_again(by_argo, records_before, trained_to, end_record["time"])
    end_well(by_argo)


def test_a_size_beyond_the_bounds_is_refused_at_the_prompt(by_argo: ByArgo) -> None:
    name = begin(by_argo).name
    (before,) = by_argo.cluster.kubectl.list("configmaps", by_argo.selector)
    for nodes in ("0", "3"):
        refused = everstep(by_argo.cluster, "scale", name, "--nodes", nodes, *THERE)
        (line,) = refused.stderr.splitlines()
        assert (refused.returncode, refused.stdout) == (2, "")
        assert f"--nodes {nodes}: worker has at least 1 and at most 2 nodes" in line
    (after,) = by_argo.cluster.kubectl.list("configmaps", by_argo.selector)
    assert after["data"] == before["data"]
    assert everstep(by_argo.cluster, "scale", name, "--nodes", "1", *THERE).returncode == 0
    wait_until(lambda: by_argo.world() == 1, "a round of one node", PATIENCE_S, pause_s=0.5)
    faults.goes_on(by_argo)
    end_well(by_argo)


def checkpoints(run: ByArgo) -> list[StoredCheckpoint]:
    """Those in its store."""
    return list_checkpoints(run.store(), f"jobs/{run.job}/")


@pytest.fixture
def machines(cluster: Cluster) -> Iterator[list[str]]:
    """The machines; a test may cordon them."""
    names = [node_name(number + 1) for number in range(NODES)]
    yield names
    cluster.kubectl("uncordon", *names)


def test_when_all_pods_are_evicted_at_once_the_newest_state_is_in_the_store(
    by_argo: ByArgo, machines: list[str]
) -> None:
    by_argo.submit_paced("", faults.spec(), persist_interval=NEVER)
    by_argo.wait_iteration(10)
    assert not by_argo.records_of("Committed"), "no copy but those in memory"
    records_before = len(by_argo.records())
    by_argo.cluster.kubectl("cordon", *machines)
    pods = [pod["metadata"]["name"] for pod in by_argo.nodes().values()]
    moment = max(faults.evict(by_argo, pod) for pod in (*pods, by_argo.pod))
    wait_until(
        lambda: not any(pod["status"].get("phase") == "Running" for pod in by_argo.nodes().values()),
        "the end of every pod that trains", PATIENCE_S, pause_s=0.2,
    )  # fmt: skip
    trained_to = max(checkpoint.iteration for checkpoint in checkpoints(by_argo))
    assert trained_to >= by_argo.iteration()
    by_argo.cluster.kubectl("uncordon", *machines)
    require_nothing_again(by_argo, records_before, trained_to, moment)
    end_well(by_argo)


def test_when_the_steps_own_machine_dies_status_names_the_command_and_argo_tries_it_again(by_argo: ByArgo) -> None:
    begin(by_argo)
    (step,) = by_argo.steps()
    with faults.powerless(int(step["spec"]["nodeName"].rpartition("-")[2])):
        faults.remove_as_told(by_argo, step["metadata"]["name"])
        wait_until(lambda: len(by_argo.records_of("MasterClaimed")) == 2, "the second master", PATIENCE_S, pause_s=0.5)
        faults.goes_on(by_argo)
    assert by_argo.in_order()
    end_well(by_argo)


@pytest.fixture
def leftovers(cluster: Cluster) -> Iterator[list[tuple[str, str]]]:
    """(Kind, name) of objects to delete after the test."""
    objects: list[tuple[str, str]] = []
    yield objects
    for kind, name in objects:
        cluster.kubectl("delete", kind, name, "--ignore-not-found", "--wait=false")


def end_of(cluster: Cluster, name: str) -> dict[str, Any]:
    """That workflow when it has ended."""

    def ended_workflow() -> dict[str, Any] | None:
        workflow = argo.workflow(cluster.kubectl, name)
        return workflow if workflow["status"].get("phase") in argo.ENDED else None

    return wait_until(ended_workflow, f"the end of workflow {name}", 2 * PATIENCE_S, pause_s=1)


def test_steps_are_submitted_alone_from_their_workflow_templates(
    cluster: Cluster, dataset: str, text: str, leftovers: list[tuple[str, str]]
) -> None:
    rendered = everstep(cluster, "templates", *FOR_STEPS)
    cluster.kubectl.apply(rendered.stdout)
    store = f"s3://{BUCKET}/alone-{secrets.token_hex(3)}"
    training = {"dataset": dataset, "nodes": "2", "iterations": "20", "sequence-length": "16", "global-batch": "8"}
    for step, values in {"corpus": {"source": text}, "train": training}.items():
        parameters = [word for key, value in values.items() for word in ("-p", f"{key}={value}")]
        try:
            name = argo.run_argo(
                "submit", "--from", f"workflowtemplate/everstep-{step}", "-p", f"store={store}", *parameters, "-o",
                "name",
            ).strip()  # fmt: skip
        except NoGoError as why:
            pytest.skip(str(why))
        leftovers.append(("workflow", name))
        workflow = end_of(cluster, name)
        assert workflow["status"]["phase"] == "Succeeded", json.dumps(workflow["status"], indent=1)


def test_a_cron_workflow_starts_the_pipeline(cluster: Cluster, text: str, leftovers: list[tuple[str, str]]) -> None:
    name = f"nightly-{secrets.token_hex(3)}"
    manifest = run_python(
        cluster, "pipelines/llama_finetune.py", "--target", "argo", *THERE, *FOR_STEPS, "--store",
        f"s3://{BUCKET}/{name}", "--corpus", text, "--iterations", "20", "-o", "yaml",
    )  # fmt: skip
    assert manifest.returncode == 0, manifest.stderr
    cron = run_python(cluster, "examples/nightly.py", "* * * * *", "--name", name, text=manifest.stdout)
    cluster.kubectl.apply(cron.stdout)
    leftovers.append(("cronworkflow", name))  # It takes its workflows along.
    label = f"workflows.argoproj.io/cron-workflow={name}"
    (first, *_) = wait_until(
        lambda: cluster.kubectl.list("workflows", label), "the first workflow", PATIENCE_S, pause_s=0.5
    )
    cluster.kubectl("patch", "cronworkflow", name, "--type=merge", "-p", json.dumps({"spec": {"suspend": True}}))
    workflow = end_of(cluster, first["metadata"]["name"])
    assert workflow["status"]["phase"] == "Succeeded", json.dumps(workflow["status"], indent=1)
    phases = argo.phases(workflow)
    assert {phases.get(step) for step in ("tokenize", "train", "evaluate")} == {"Succeeded"}
