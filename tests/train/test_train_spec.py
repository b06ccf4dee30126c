"""A training step's flags and its job spec: one job, or one line that says what contradicts what."""

import json
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from everstep.job import EndingPolicy, JobSpec, Patience, Resources, RestartPolicy, RoleSpec
from everstep.steps import train
from everstep.steps.entry import StepError
from everstep.steps.train import Config
from everstep.steps.train.job import job_of, ranks

PAGE = Path(__file__).parents[2] / "docs/how-to/from-dlrover.md"
ROLES = """
failPolicy: All
patience: {maxRestarts: 9}
avoidHosts: [local-7]
replicaSpecs:
  chief: {replicas: 1, restartPolicy: Never}
  worker: {replicas: 3, minReplicas: 2, slots: 2, resources: {memory: 4Gi}}
"""


@pytest.fixture
def spec(tmp_path: Path) -> str:
    """A file with two roles."""
    (tmp_path / "roles.yaml").write_text(ROLES)
    return str(tmp_path / "roles.yaml")


def refusal_of(**changes: object) -> str:
    with pytest.raises(StepError) as caught:
        Config(**changes).check()  # type: ignore[arg-type]
    assert caught.value.code == 2
    assert "\n" not in str(caught.value)
    return str(caught.value)


def test_without_a_spec_the_flags_say_it_all() -> None:
    job = job_of(Config(nodes=3, max_restarts=1))
    assert job == JobSpec("by-hand-train", {"worker": RoleSpec(3, 1)}, Patience(max_restarts=1))


def test_the_file_says_the_roles_and_the_flags_what_it_leaves_out(spec: str) -> None:
    job = job_of(Config(job_spec=spec, job="u-train", max_relaunches=5, avoid_hosts='["local-1"]'))
    assert job.job == "u-train"
    assert job.fail_policy is EndingPolicy.ALL
    assert (job.patience.max_restarts, job.patience.max_relaunches) == (9, 5)
    assert job.avoid_hosts == ("local-7", "local-1")
    assert job.roles["chief"].restart_policy is RestartPolicy.NEVER
    assert (job.roles["worker"].nodes, job.roles["worker"].min_nodes, ranks(job)) == (3, 2, 7)


def test_a_flag_may_repeat_the_file_but_not_contradict_it(spec: str) -> None:
    Config(job_spec=spec, nodes=3, workers_per_node=2).check()
    refusal = refusal_of(job_spec=spec, nodes=4)
    assert (
        refusal
        == f"--job-spec {spec} line 7: replicaSpecs.worker.replicas: 3 here, but --nodes says 4; say it in one place"
    )


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("replicaSpecs:\n  worker: {replica: 3}\n", "line 2: replicaSpecs.worker.replica: unknown; did you mean"),
        ("replicaSpecs:\n  worker: {replicas: 9}\n", "--global-batch 8: fewer samples than the 9 ranks"),
        ("placement: joined\nreplicaSpecs: {worker: {replicas: 1}}\n", "but a step that makes its nodes says"),
        ("replicaSpecs: {worker: {replicas: 1, waitsFor: [ps]}}\n", "the job has no role 'ps'"),
        ("a: [\n", "line 2: "),
    ],
)
def test_what_is_wrong_with_the_file_is_told_by_name_and_line(tmp_path: Path, text: str, words: str) -> None:
    (tmp_path / "job.yaml").write_text(text)
    assert words in refusal_of(job_spec=str(tmp_path / "job.yaml"))


def test_the_spec_of_the_documentation_is_one(tmp_path: Path) -> None:
    yaml_text = PAGE.read_text().partition("```yaml\n")[2].partition("```")[0]
    (tmp_path / "job.yaml").write_text(yaml_text)
    config = Config(job_spec=str(tmp_path / "job.yaml"))
    config.check()
    job = job_of(config)
    assert (list(job.roles), job.roles["worker"].resources) == (["chief", "worker"], Resources(2.0, 4 << 30))


def test_a_file_that_is_not_there_is_told() -> None:
    assert refusal_of(job_spec="no/such.yaml").startswith("--job-spec no/such.yaml: No such file or directory; give")


def test_a_spec_in_python_travels_in_the_manifest() -> None:
    worker = RoleSpec(3, 2, resources=Resources(memory_bytes=1 << 30, others={"nvidia.com/gpu": 1.0}))
    expected_spec = JobSpec(roles={"worker": worker}, patience=Patience(cooldown_s=5))
    task = train.task(dataset="d", job_spec=expected_spec)
    task_arguments: Any = task.arguments
    assert json.loads(task_arguments["job-spec"])["patience"] == {"coolDown": 5}
    job = job_of(Config(job_spec=task_arguments["job-spec"], job="u-train"))
    assert job == JobSpec("u-train", expected_spec.roles, expected_spec.patience)


def test_the_step_refuses_it_with_exit_code_2_and_writes_nothing(tmp_path: Path) -> None:
    (tmp_path / "job.yaml").write_text("replicaSpecs:\n  worker: {replicas: 2, minReplicas: 3}\n")
    run = subprocess.run(
        [sys.executable, "-m", "everstep.steps.train", "--job-spec", "job.yaml"],
        cwd=tmp_path, capture_output=True, text=True, check=False,
    )  # fmt: skip
    assert run.returncode == 2
    assert run.stderr == "train: --job-spec job.yaml line 2: replicaSpecs.worker.minReplicas: 3 is more than nodes, 2\n"
    assert [path.name for path in tmp_path.iterdir()] == ["job.yaml"]
