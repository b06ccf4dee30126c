"""What stands around a job: objects in the same file, and labels and annotations that are a controller's."""

import pytest

from everstep.convert import convert
from everstep.convert.workflow import workflow_of
from tests.convert.stand_ins import HEAD, JOBS, POD

GROUP = """\
apiVersion: scheduling.volcano.sh/v1beta1
kind: PodGroup
metadata: {name: gang}
spec: {minMember: 2}
---
"""
MARKED = POD.replace(
    "template: {spec: {",
    "template: {metadata: {annotations: {scheduling.k8s.io/group-name: gang}}, spec: {schedulerName: volcano, ",
)
MADE = "f:1: PodGroup gang: left out; --gang makes one for the job, of --min-nodes nodes"
NOT_CARRIED = f"{MADE}; not carried: minMember"
AS_BEFORE = "f:1: PodGroup gang: left out; create it as before"


def test_volcanos_mark_on_a_jobs_pods_is_the_steps_gang() -> None:
    conversion = convert(f"{GROUP}{HEAD}  replicaSpecs: {{worker: {{replicas: 3, {MARKED}}}}}", "f")
    assert conversion.arguments["gang"] == "volcano"
    worker = conversion.arguments["job_spec"]["replicaSpecs"]["worker"]
    assert (worker["replicas"], worker["minReplicas"]) == (3, 2)
    assert worker["template"] == {"spec": {"schedulerName": "volcano"}}
    assert MADE in conversion.notes


def test_a_groups_queue_is_the_jobs_and_what_else_it_has_is_listed() -> None:
    group = GROUP.replace("minMember: 2", "queue: research, minMember: 2, minResources: {cpu: 4}")
    job = f"{HEAD}  replicaSpecs: {{worker: {{replicas: 3, {MARKED}}}}}"
    conversion = convert(group + job, "f")
    assert conversion.arguments["queue"] == "research"
    assert f"{MADE}; not carried: minResources" in conversion.notes
    volcano = (JOBS / "volcano_job.yaml").read_text()
    conversion = convert(group + volcano, "f")
    assert conversion.arguments["queue"] == "default"
    assert f"{MADE}; not carried: queue, minResources" in conversion.notes


@pytest.mark.parametrize(
    ("job", "said"),
    [
        (f"{HEAD}  replicaSpecs: {{worker: {{replicas: 3, {POD}}}}}", AS_BEFORE),
        (f"{HEAD}  replicaSpecs: {{chief: {{{MARKED}}}, worker: {{replicas: 3, {MARKED}}}}}", NOT_CARRIED),
        (
            f"{HEAD}  replicaSpecs: {{worker: {{replicas: 3, {MARKED.replace('python', 'torchrun, --nnodes=3')}}}}}",
            NOT_CARRIED,
        ),
        (f"{HEAD}  replicaSpecs: {{worker: {{replicas: 1, {MARKED}}}}}", NOT_CARRIED),
        ((JOBS / "volcano_job.yaml").read_text().replace("minAvailable: 2", "minAvailable: 3"), NOT_CARRIED),
    ],
    ids=["no gang", "two roles", "the launcher's own", "more than there are", "a gang of its own"],
)
def test_a_group_that_the_step_does_not_make_is_said_to_be_left_out(job: str, said: str) -> None:
    assert said in convert(GROUP + job, "f").notes


@pytest.mark.parametrize("kind", ["labels", "annotations"])
def test_what_is_the_workflow_controllers_stays_with_it(kind: str) -> None:
    metadata = f"{{name: x, {kind}: {{workflows.argoproj.io/completed: 'true', team: a}}}}"
    text = HEAD.replace("{name: x}", metadata) + f"  replicaSpecs: {{worker: {{{POD}}}}}"
    conversion = convert(text, "f")
    assert workflow_of(conversion, "store")["metadata"] == {"generateName": "x-", kind: {"team": "a"}}
    at = f"f:3: metadata.{kind}.workflows.argoproj.io/completed"
    assert f"{at}: no counterpart; nearest: none, it is the workflow controller's own" in conversion.notes
