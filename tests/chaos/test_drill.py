"""The drill as a workflow, and its verdict."""

import dataclasses
import json
import os
import subprocess
import sys
from collections.abc import Mapping
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import msgspec
import pytest
from hera.workflows import DAG, Workflow

from benchmarks.chaos_drill import rows_of
from everstep.runtime.job.reasons import JobResult
from everstep.runtime.job.records import JobEnded
from everstep.runtime.job.spec import JobSpec
from everstep.runtime.journal.journal import claim
from everstep.runtime.report.history import Point
from everstep.runtime.store import DirectoryStore, open_store
from everstep.steps import train
from everstep.steps.chaos.drill import CASES, check_names, drill
from everstep.steps.entry import StepError
from everstep.steps.train.job import job_of
from everstep.steps.verdict.compare import (
    FinalState,
    Training,
    compare_samples,
    compare_states,
    cost,
    refused_row,
    row,
)  # fmt: skip
from everstep.steps.verdict.config import Config, Experiment
from everstep.steps.verdict.run import final_state, write_page
from everstep.steps.verdict.run import run as give_verdict
from tests.checkpoint.test_random_damages import commit
from tests.harness import ROOT
from tests.tokenized import SMALL_MODEL, fill_store, small_corpus

FIRED = {"kind": "crash", "node": "n", "time": 2.5, "evidence": "killed"}


def tasks(only: str, **arguments: Any) -> dict[str, Any]:
    """By name, of a workflow with the drill."""
    with Workflow(generate_name="w-", entrypoint="main") as workflow, DAG(name="main", fail_fast=False):
        drill(only=only, iterations=50, dataset="d", **arguments)
    templates = workflow.to_dict()["spec"]["templates"]
    return {task["name"]: task for template in templates if "dag" in template for task in template["dag"]["tasks"]}


def values(task: dict[str, Any]) -> dict[str, str]:
    """A task's arguments."""
    return {parameter["name"]: parameter["value"] for parameter in task["arguments"]["parameters"]}


def job(task: dict[str, Any]) -> JobSpec:
    """The job of a training, as its step reads it."""
    given = {name.replace("-", "_"): value for name, value in values(task).items() if name in ("job-spec", "nodes")}
    return job_of(train.Config(**{**given, "nodes": int(given.get("nodes", 2))}))


def curve(*losses: float, step: float = 1.0) -> list[Point]:
    return [Point(step * (n + 1), 1, n + 1, loss) for n, loss in enumerate(losses)]


def training(points: list[Point], **tensors: list[float]) -> Training:
    return Training(points, state_of(tensors), "succeeded")


def state_of(values: Mapping[str, list[float]]) -> FinalState:
    """A checkpoint with these tensors; without any there is none."""
    import torch

    tensors = {name: torch.tensor(value) for name, value in values.items()}
    return FinalState(3, frozenset({(0, str(values))} if values else ()), 8, lambda: tensors)


def test_the_experiments_are_those_of_the_published_chaos_tests() -> None:
    assert list(CASES)[:9] == [
        "pod-preempted", "slow-node", "faulty-at-start", "network-loss", "process-crash", "out-of-memory",
        "three-four-three", "cpu-overload-90", "memory-80",
    ]  # fmt: skip


def test_each_experiment_is_a_training_beside_its_fault_after_a_reference_of_its_size() -> None:
    task_names = tasks("process-crash,three-four-three")
    assert list(task_names) == [
        "train-reference", "train-reference-3-long", "train-process-crash", "chaos-process-crash",
        "train-three-four-three", "chaos-three-four-three", "verdict",
    ]  # fmt: skip
    assert task_names["train-process-crash"]["depends"] == task_names["chaos-process-crash"]["depends"]
    assert "train-process-crash.Failed" in task_names["train-three-four-three"]["depends"]


def test_without_its_reference_an_experiment_is_left_out() -> None:
    task_names = tasks("process-crash,three-four-three")
    for name, reference in (("process-crash", "reference"), ("three-four-three", "reference-3-long")):
        for part in ("train", "chaos"):
            assert task_names[f"{part}-{name}"]["depends"].startswith(f"train-{reference}.Succeeded && ")
    assert "train-three-four-three.Omitted" in task_names["verdict"]["depends"]


def test_after_a_reference_without_a_checkpoint_nothing_is_tried() -> None:
    task_names = tasks("process-crash,three-four-three")
    assert "when" not in task_names["train-reference"]
    assert task_names["train-reference-3-long"]["depends"] == "train-reference.Succeeded"
    references = {"reference-3-long": "reference", "process-crash": "reference", "three-four-three": "reference-3-long"}
    for name, reference in references.items():
        parts = ("train",) if name.startswith("reference") else ("train", "chaos")
        for part in parts:
            checkpoint = f"{{{{tasks.train-{reference}.outputs.parameters.checkpoint}}}}"
            assert task_names[f"{part}-{name}"]["when"] == f"'{checkpoint}' != ''"
    assert "when" not in task_names["verdict"]


OWN = """
replicaSpecs:
  worker: {replicas: 6, minReplicas: 4, maxReplicas: 8, slots: 2, resources: {cpu: 2, memory: 8Gi}}
  ps: {replicas: 1}
patience: {maxRestarts: 7, replacementWait: 5}
certifyInterval: 10
"""


@pytest.mark.parametrize("as_text", [True, False])
def test_a_drill_takes_the_job_spec_of_your_step(as_text: bool) -> None:
    own = OWN if as_text else job_of(train.Config(job_spec=OWN))
    task_names = tasks("memory-80,three-four-three", job_spec=own, min_nodes=2, max_relaunches=3, replacement_wait_s=5)
    for name, nodes, most in (("train-memory-80", 2, 8), ("train-three-four-three", 3, 4)):
        spec = job(task_names[name])
        worker = spec.roles["worker"]
        assert (worker.nodes, worker.min_nodes, worker.max_nodes, worker.slots) == (nodes, 2, most, 2)
        assert (worker.resources.cpu, worker.resources.memory_bytes) == (2, 8 << 30)
        assert spec.roles["ps"].nodes == 1
        patience = spec.patience
        assert (patience.max_restarts, patience.replacement_wait_s, patience.max_relaunches) == (7, 120, 10)
        assert spec.certify_interval == 10
    assert [experiment["lost"] for experiment in json.loads(values(task_names["verdict"])["experiments"])] == [11, 11]


def test_a_drill_takes_the_arguments_of_your_step() -> None:
    own = {"workers_per_node": 2, "persist_interval": 15, "certify_interval": 5, "script": "mine.py", "spares": 1}
    task_names = tasks("process-crash,everything-lost", **own)
    for name in ("train-reference", "train-process-crash"):
        expected = {"workers-per-node": "2", "persist-interval": "15", "certify-interval": "5", "script": "mine.py"}
        assert expected.items() <= values(task_names[name]).items()
    crash, everything = json.loads(values(task_names["verdict"])["experiments"])
    assert (crash["lost"], everything["lost"]) == (1 + 5, 2 * 15)


def test_states_that_go_to_the_store_are_certified_ones() -> None:
    assert values(tasks("process-crash", certify_interval=4)["train-reference"])["persist-interval"] == "12"


def test_what_the_limits_follow_from_must_be_known() -> None:
    with pytest.raises(StepError, match=r"drill: persist_interval \{\{workflow.parameters.p\}\}: give a number"):
        tasks("process-crash", persist_interval="{{workflow.parameters.p}}")


def test_chaosblades_operator_gets_the_faults_that_it_can_do() -> None:
    task_names = tasks("process-crash,network-loss", chaosblade=True)
    by_operator = {
        name: values(task).get("chaosblade") for name, task in task_names.items() if name.startswith("chaos-")
    }
    assert by_operator == {"chaos-network-loss": "True", "chaos-process-crash": None}


def test_an_unknown_experiment_is_named() -> None:
    with pytest.raises(StepError, match="--only x: no such experiment; there are pod-preempted"):
        check_names("process-crash, x")


def test_the_cost_is_the_longest_gap_and_what_was_done_again() -> None:
    points = [*curve(9, 8, 7), Point(6.0, 2, 3, 7.0), Point(9.0, 2, 4, 6.0)]
    assert cost(points, 3.5) == (5.5, 1)


def test_a_training_like_the_reference_holds() -> None:
    experiment = Experiment("e", seconds=5, lost=1)
    mine, reference = training(curve(3, 2, 1), a=[1.0, 2.0]), training(curve(3, 2, 1), a=[1.0, 2.0])
    assert row(experiment, FIRED, "", mine, reference, 0.02).good


@pytest.mark.parametrize(
    "changes",
    [
        {"mine": training(curve(3, 2, 1), a=[1.0, 2.5])},
        {"mine": training(curve(3, 2.1, 1), a=[1.0, 2.0])},
        {"mine": training(curve(3, 2, 1, step=4.0), a=[1.0, 2.0])},
        {"mine": training([*curve(3, 2, 1), *[Point(3.5, 2, 2, 2.0)] * 2], a=[1.0, 2.0])},
        {"fired": None},
    ],
    ids=["other weights", "another loss", "too slow", "too much again", "not fired"],
)
def test_what_differs_does_not_hold(changes: dict[str, Any]) -> None:
    case = SimpleNamespace(fired=FIRED, mine=training(curve(3, 2, 1), a=[1.0, 2.0]))
    vars(case).update(changes)
    reference = training(curve(3, 2, 1), a=[1.0, 2.0])
    assert not row(Experiment("e", seconds=3, lost=1), case.fired, "", case.mine, reference, 0.02).good


def test_a_fault_after_the_last_iteration_has_shown_nothing() -> None:
    mine = reference = training(curve(3, 2, 1), a=[1.0, 2.0])
    for seconds in (5, 0):
        late = row(Experiment("e", seconds=seconds, lost=1), {**FIRED, "time": 3.5}, "", mine, reference, 0.02)
        assert (late.good, late.seconds.good) == (False, False)


def judge(folder: Path, *experiments: Experiment, **chaos_facts: dict[str, Any]) -> str:
    """Why the verdict on these experiments fails; the facts are those of each fault's step."""
    store = open_store(str(folder / "store"))
    for name, facts in chaos_facts.items():
        store.put(f"runs/r/steps/chaos-{name}.json", json.dumps({"facts": facts}).encode())
    config = Config(
        experiments=msgspec.json.encode(experiments).decode(),
        uid="u",
        store=store.uri,
        run="r",
        outputs=str(folder / "outputs"),
    )
    with pytest.raises(StepError) as caught:
        give_verdict(config)
    assert caught.value.code == 1
    return str(caught.value)


def test_a_drill_without_any_fault_shows_nothing(tmp_path: Path) -> None:
    why = judge(tmp_path, Experiment("a", 5, 1), a={"refused": "this machine has none mounted"})
    assert "0 of 1 experiments hold; not possible here: a: no fault met a training" in why


def test_in_a_pod_the_page_is_an_artifact(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    assert judge(tmp_path, Experiment("a", 5, 1)).endswith(f"; see {tmp_path}/outputs/drill.html")
    monkeypatch.setenv("EVERSTEP_POD", "w-verdict-1")
    assert judge(tmp_path, Experiment("a", 5, 1)).endswith("; see this step's artifact drill")


def test_the_rows_of_a_page_are_those_of_the_verdict(tmp_path: Path) -> None:
    mine = training(curve(3, 2, 1), a=[1.0, 2.0])
    experiments = [Experiment("a", 5, 1), Experiment("b", 0, 0)]
    verdicts = [
        row(experiments[0], {**FIRED, "evidence": "3 -> 4 < 5"}, "", mine, mine, 0.02),
        refused_row(experiments[1], "no & no"),
    ]
    rows = rows_of(write_page(Config(outputs=str(tmp_path)), verdicts, {"reference": mine}).read_text())
    assert {name: one.holds for name, one in rows.items()} == {"a": True, "b": False}
    assert rows["a"].text.startswith("seconds 0.5 (at most 5), computed again 0 (at most 1), state 0.0 MB the same")
    assert rows["a"].text.endswith("samples 3 of 3 losses compared; n: 3 -> 4 < 5")
    assert rows["b"].markdown == "| b: not possible here: no & no | - | - | - | - |"


def test_an_experiment_whose_reference_failed_says_so(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert judge(tmp_path, Experiment("a", 5, 1)).startswith(
        "the drill stopped: the undisturbed training did not end: train-reference; see "
    )
    assert "a: not tried: the undisturbed training did not end: train-reference" in capsys.readouterr().err


def test_a_reference_without_a_checkpoint_stops_the_drill_with_one_line(tmp_path: Path) -> None:
    journal, _ = claim(DirectoryStore(tmp_path / "store"), "u-train-reference", "a:1", 1.0)
    journal.write(journal.draft([JobEnded(time=2.0, result=JobResult.SUCCEEDED, reason="all workers finished")]))
    assert judge(tmp_path, Experiment("a", 5, 1), Experiment("b", 5, 1)).startswith(
        "the drill stopped: the undisturbed training left no readable checkpoint to compare with: train-reference; "
    )


def test_where_nodes_must_start_anew_they_may_take_as_long_as_those_of_the_reference() -> None:
    mine, reference = training(curve(3, 2, 1, step=4.0), a=[1.0]), training(curve(3, 2, 1), a=[1.0])
    reference = dataclasses.replace(reference, start_s=2.0)
    assert not row(Experiment("e", seconds=3, lost=1), FIRED, "", mine, reference, 0.02).good
    started = row(Experiment("e", seconds=3, lost=1, starts=True), FIRED, "", mine, reference, 0.02)
    assert (started.good, started.seconds.text) == (True, "4.0 (at most 3 and 2.0 for a start)")


def test_a_state_that_is_the_same_byte_for_byte_is_not_read() -> None:
    mine = training(curve(3), a=[1.0])
    check = compare_states(mine, dataclasses.replace(mine, state=dataclasses.replace(mine.state, read=pytest.fail)), 0)
    assert check.good
    assert check.text.endswith(" MB the same, byte for byte")


def test_states_that_differ_and_cannot_be_read_are_not_the_same() -> None:
    mine, reference = (
        dataclasses.replace(training(curve(3)), state=FinalState(3, frozenset({(0, digest)}), 8)) for digest in "ab"
    )
    assert not compare_states(mine, reference, 1.0).good


def test_a_state_in_the_store_is_known_by_its_digests_and_a_damaged_one_is_none(tmp_path: Path) -> None:
    store = DirectoryStore(tmp_path)
    commit(store, (1, 20), 1)
    first, second = commit(store, (2, 30), 2)
    state = final_state(store, "j")
    assert (state.iteration, state.shards) == (30, {(0, first.digest), (1, second.digest)})
    assert state.size == first.size + second.size
    path = tmp_path / second.key
    data = bytearray(path.read_bytes())
    data[-1] ^= 1
    path.write_bytes(data)
    assert final_state(store, "j") == FinalState()


def test_the_tensors_of_a_state_are_read_when_they_are_asked_for(tmp_path: Path) -> None:
    commit(store := DirectoryStore(tmp_path), (2, 30), 1)
    assert list(final_state(store, "j").read()) == ["weight"]


def test_trainings_that_saved_nothing_are_not_the_same() -> None:
    check = compare_states(training(curve(3)), training(curve(3)), 0.0)
    assert (check.good, check.text.partition(":")[0]) == (False, "nothing to compare")


def test_where_nodes_came_and_went_the_state_may_differ_by_the_tolerance() -> None:
    reference = training(curve(3), a=[1.0, 2.0])
    assert compare_states(training(curve(3), a=[1.0, 2.01]), reference, 0.02).good
    assert not compare_states(training(curve(3), a=[1.0, 2.2]), reference, 0.02).good


def test_where_nodes_came_and_went_few_losses_may_swing_and_other_samples_show() -> None:
    reference = [5.0 + 0.5 * (n % 7) for n in range(300)]
    swinging = [loss * (1.03 if n in (146, 150) else 1.001) for n, loss in enumerate(reference)]
    shifted = [*reference[:200], *reference[201:], 5.0]
    assert compare_samples(curve(*swinging), curve(*reference), exact=False, far=0.02).good
    assert not compare_samples(curve(*swinging), curve(*reference), exact=True, far=0.02).good
    assert not compare_samples(curve(*shifted), curve(*reference), exact=False, far=0.02).good
    losses = [loss * (1.2 if n == 100 else 1.0) for n, loss in enumerate(reference)]
    assert not compare_samples(curve(*losses), curve(*reference), exact=False, far=0.02).good


def reading(*first_samples: int) -> list[Point]:
    """Batches that begin with these samples; all losses are alike."""
    return [Point(float(n), 1, n, 5.0, first_sample=first) for n, first in enumerate(first_samples, start=1)]


@pytest.mark.parametrize(
    ("read", "iteration"),
    [((7, 3, 4, 9, 1), 2), ((7, 4, 9, 1, 8), 3), ((7, 4, 3, 3, 9), 4)],
    ids=["two swapped", "one left out", "one done twice"],
)
@pytest.mark.parametrize("exact", [True, False])
def test_another_order_of_samples_shows_whatever_the_losses_are(
    read: tuple[int, ...], iteration: int, exact: bool
) -> None:
    check = compare_samples(reading(*read), reading(7, 4, 3, 9, 1), exact=exact, far=0.02)
    assert not check.good
    assert check.text.endswith(f"first that of iteration {iteration}")


def test_a_batch_that_is_computed_again_must_have_the_same_samples_and_loss() -> None:
    reference = reading(7, 4, 3)
    assert compare_samples([*reference, Point(4.0, 2, 2, 5.0, first_sample=4)], reference, exact=True, far=0.0).good
    assert not compare_samples(
        [Point(0.5, 1, 2, 5.0, first_sample=9), *reference], reference, exact=False, far=0.1
    ).good
    assert not compare_samples(
        [Point(0.5, 1, 2, 6.0, first_sample=4), *reference], reference, exact=False, far=0.02
    ).good


def test_a_training_whose_losses_are_unknown_does_not_hold() -> None:
    assert not compare_samples(curve(3), curve(3, 2, 1), exact=True, far=0.0).good


def test_unreadable_experiments_are_refused() -> None:
    with pytest.raises(StepError, match="--experiments: "):
        Config(experiments='[{"name": 1}]').check()


@pytest.mark.long
def test_a_drill_holds_for_a_killed_process_and_a_lost_store(
    tmp_path: Path, tmp_path_factory: pytest.TempPathFactory
) -> None:
    words = ["--only", "process-crash,store-lost", "--iterations", "100", "--sequence-length", "32"]
    texts = small_corpus(tmp_path_factory)
    fill_store(tmp_path_factory, "small", texts, tmp_path / "runs" / "store")
    command = [sys.executable, str(ROOT / "pipelines/chaos_drill.py"), *words, *SMALL_MODEL, "--corpus", texts]
    ran = subprocess.run(
        [*command, "--name", "d"], cwd=tmp_path, env=dict(os.environ), capture_output=True, text=True, check=False
    )
    assert ran.returncode == 0, ran.stderr
    assert "verdict: 2 of 2 experiments hold" in ran.stderr
    summary = json.loads((tmp_path / "runs/store/runs/d/steps/chaos-process-crash.json").read_text())
    assert "SIGKILL" in summary["facts"]["evidence"]
    assert (tmp_path / "runs/d/drill.html").read_text().count("<tr>") == 3
