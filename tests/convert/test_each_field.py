"""Each field of another system's job is carried under the name that it has here, or listed with the nearest."""

import copy
import json
import re
import shlex
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import yaml

from everstep.convert import ConvertError, convert
from everstep.runtime.job.fault_policy import judgement
from everstep.runtime.job.nodes import NodePhase, NodeState
from everstep.runtime.job.reasons import Decision, Reason
from everstep.runtime.job.spec import EndingPolicy, JobSpec
from everstep.runtime.job.spec_reader import spec_of
from everstep.runtime.job.state import State
from everstep.runtime.workflow.manifest.yaml_source import FieldPath
from tests.convert.stand_ins import HEAD, JOBS, POD

OWN_SSH_FIRST = ["sh", "-c", 'export PATH=$EVERSTEP_SSH:$PATH; exec "$@"', "sh"]


def fields_of(value: Any, path: FieldPath = ()) -> Iterator[tuple[FieldPath, Any]]:
    """Everything in it, with its place."""
    each = value.items() if isinstance(value, dict) else enumerate(value) if isinstance(value, list) else ()
    for name, inner in each:
        yield (*path, name), inner
        yield from fields_of(inner, (*path, name))


def with_value(job: Any, path: FieldPath, value: Any) -> Any:
    """A copy of the job, with another value there."""
    changed = copy.deepcopy(job)
    *outer, last = path
    place = changed
    for name in outer:
        place = place[name]
    place[last] = value
    return changed


def names_it(line: str, path: FieldPath) -> bool:
    """Whether the line begins with the field's place, or with that of a field around it."""
    texts = ["".join(f"[{part}]" if isinstance(part, int) else f".{part}" for part in path[:end]).lstrip(".")
             for end in range(1, len(path) + 1)]  # fmt: skip
    return any(re.match(rf"f:\d+: {re.escape(text)}: ", line) for text in texts)


def said_of(text: str) -> tuple[str, ...]:
    """The notes, or why it is refused."""
    try:
        return convert(text, "f").notes
    except ConvertError as error:
        return (str(error),)


@pytest.mark.parametrize("job", sorted(JOBS.glob("*.yaml")), ids=lambda path: path.stem)
def test_a_field_of_a_wrong_type_is_named_with_its_line(job: Path) -> None:
    whole = yaml.safe_load(job.read_text())
    for path, value in fields_of(whole):
        for wrong in ("text" if isinstance(value, dict) else {"a": 1}, [] if isinstance(value, str | int) else 7):
            said = said_of(yaml.safe_dump(with_value(whole, path, wrong), sort_keys=False))
            assert any(names_it(line, path) for line in said), (path, wrong, said)


def noted(text: str, image: str = "") -> str:
    """Everything that is said of it."""
    return "\n".join(convert(text, "f", image).notes)


def test_what_a_job_spec_has_is_carried_and_not_called_without_counterpart() -> None:
    security, dns = "securityContext: {runAsUser: 1000}", "dnsPolicy: Default, dnsConfig: {nameservers: [10.0.0.1]}"
    pod = POD.replace("spec: {", f"spec: {{{security}, {dns}, runtimeClassName: nvidia, ").replace(
        "image: i,", "image: i, securityContext: {privileged: true},"
    )
    text = f"{HEAD}  replicaSpecs: {{worker: {{{pod}}}}}"
    template = convert(text, "f").arguments["job_spec"]["replicaSpecs"]["worker"]["template"]["spec"]
    assert template == {
        "securityContext": {"runAsUser": 1000}, "dnsPolicy": "Default", "dnsConfig": {"nameservers": ["10.0.0.1"]},
        "runtimeClassName": "nvidia", "containers": [{"securityContext": {"privileged": True}}],
    }  # fmt: skip
    assert "no counterpart" not in noted(text)


def test_a_job_barrier_is_what_its_role_waits_for_and_another_container_is_listed() -> None:
    text = (JOBS / "ai_training_job.yaml").read_text()
    assert convert(text, "f").arguments["job_spec"]["replicaSpecs"]["launcher"]["waitsFor"] == ["trainer"]
    assert "initContainers" not in noted(text)
    assert "launcher.template.spec.initContainers" in noted(text.replace("--barrier_roles=trainer", "--barrier=all"))
    assert "launcher.template.spec.initContainers" in noted(
        text.replace("--barrier_roles=trainer", "--barrier_roles=a")
    )


def commands_of(text: str) -> dict[str, list[str]]:
    """By role, without what makes them outlive rounds."""
    commands = json.loads(*shlex.split(convert(text, "f").arguments["script_args"]))
    outlives = "python -m everstep.keep_running "
    assert all(command.startswith(outlives) for command in commands.values())
    return {role: shlex.split(command.removeprefix(outlives)) for role, command in commands.items()}


def test_an_ssh_plugins_keys_are_those_of_the_launchers_ssh_and_of_the_server_in_place_of_sshd() -> None:
    text = (JOBS / "ai_training_job.yaml").read_text()
    assert "spec.plugin.ssh: the job's keys are in $EVERSTEP_SSH" in noted(text)
    assert "it run python -m everstep.ssh_server" not in noted(text)
    commands, own = commands_of(text), "export PATH=$EVERSTEP_SSH:$PATH; "
    assert commands["launcher"][:2] == ["/bin/bash", "-c"]
    assert commands["launcher"][2].startswith(f"{own}export HOROVOD_GLOO_TIMEOUT_SECONDS=300 && horovodrun")
    assert commands["trainer"] == ["python", "-m", "everstep.ssh_server"]
    without = text.replace('plugin: {ssh: [""], discovery: [""]}', 'plugin: {discovery: [""]}')
    assert commands_of(without)["trainer"] == ["/bin/bash", "-c", "/usr/sbin/sshd && sleep infinity"]
    assert own not in commands_of(without)["launcher"][2]


@pytest.mark.parametrize("command", ["[/usr/sbin/sshd, -D]", "[sh, -c, sshd; sleep inf]", "[bash, -c, sshd -D]"])
def test_a_command_that_only_serves_ssh_is_replaced(command: str) -> None:
    text = (JOBS / "ai_training_job.yaml").read_text()
    text = text.replace("[/bin/bash, -c, /usr/sbin/sshd && sleep infinity]", command)
    assert commands_of(text)["trainer"] == ["python", "-m", "everstep.ssh_server"]


@pytest.mark.parametrize("command", ["[sh, -c, sshd && python prepare.py]", "[sleep, infinity]", "[sh, sshd]"])
def test_a_command_that_does_more_than_serve_ssh_stays_and_is_listed(command: str) -> None:
    text = (JOBS / "ai_training_job.yaml").read_text()
    text = text.replace("[/bin/bash, -c, /usr/sbin/sshd && sleep infinity]", command)
    assert commands_of(text)["trainer"][0] == command.strip("[").partition(",")[0]
    assert "spec.replicaSpecs.trainer: its command starts more than sshd, or none: have it run python -m" in noted(text)


def test_a_launcher_without_a_shell_gets_the_jobs_ssh_too() -> None:
    text = (JOBS / "ai_training_job.yaml").read_text()
    launched = re.sub(r"command: \[/bin/bash, -c, \"export.*", 'command: [horovodrun, -np, "2", python, a b.py]', text)
    assert commands_of(launched)["launcher"] == [*OWN_SSH_FIRST, "horovodrun", "-np", "2", "python", "a b.py"]


@pytest.mark.parametrize(
    ("command", "expected"),
    [
        (["python", "-c", "import horovod"], [*OWN_SSH_FIRST, "python", "-c", "import horovod"]),
        (
            ["horovodrun", "--host-discovery-script", "/etc/edl/discover_hosts.sh", "a b.py"],
            [
                "sh", "-c", "export PATH=$EVERSTEP_SSH:$PATH; exec horovodrun --host-discovery-script "
                "\"$EVERSTEP_DISCOVERY_SCRIPT\" 'a b.py'",
            ],
        ),
        (["bash", "-lc", "horovodrun a"], ["bash", "-lc", "export PATH=$EVERSTEP_SSH:$PATH; horovodrun a"]),
        (["bash", "-l", "-c", "run", "x"], ["bash", "-l", "-c", "export PATH=$EVERSTEP_SSH:$PATH; run", "x"]),
    ],
)  # fmt: skip
def test_the_jobs_ssh_comes_first_in_a_shells_own_text(command: list[str], expected: list[str]) -> None:
    text = (JOBS / "ai_training_job.yaml").read_text()
    launched = re.sub(r"command: \[/bin/bash, -c, \"export.*", f"command: {json.dumps(command)}", text)
    assert commands_of(launched)["launcher"] == expected


@pytest.mark.parametrize("seconds", [0, 86_401])
def test_a_grace_period_that_no_node_has_is_listed(seconds: int) -> None:
    text = (JOBS / "ai_training_job.yaml").read_text()
    text = text.replace("terminationGracePeriodSeconds: 30", f"terminationGracePeriodSeconds: {seconds}")
    place = "spec.replicaSpecs.launcher.template.spec.terminationGracePeriodSeconds"
    assert f"{place}: {seconds}: no counterpart; nearest: 1 to 86400 seconds" in noted(text)
    spec = convert(text, "f").arguments["job_spec"]["replicaSpecs"]["launcher"]["template"]["spec"]
    assert "terminationGracePeriodSeconds" not in spec
    assert spec["dnsPolicy"] == "ClusterFirstWithHostNet"


def test_a_framework_without_its_roles_is_listed() -> None:
    text = (JOBS / "ai_training_job.yaml").read_text()
    other = text.replace("frameworkType: horovod", "frameworkType: tensorflow")
    assert "spec.frameworkType: no counterpart for these roles" in noted(other)
    named = (
        other.replace("    launcher:", "    chief:")
        .replace("    trainer:", "    worker:")
        .replace("--barrier_roles=trainer", "--barrier_roles=worker")
    )
    assert convert(named, "f").arguments["job_spec"]["frameworkType"] == "tensorflow"


def test_volcanos_tasks_wait_for_those_that_they_depend_on_and_its_plugins_are_listed() -> None:
    text = (JOBS / "volcano_job.yaml").read_text()
    tasks = "  tasks:\n  - {name: first, template: {spec: {containers: [{image: i, command: [python, a.py]}]}}}\n"
    more = text.replace("  tasks:\n", tasks).replace(
        "name: nginx\n", "name: nginx\n    dependsOn: {name: [first]}\n", 1
    )
    assert convert(more, "f").arguments["job_spec"]["replicaSpecs"]["nginx"]["waitsFor"] == ["first"]
    assert "spec.plugins.ssh: no counterpart; nearest: RANK, WORLD_SIZE" in noted(text.replace("svc: []", "ssh: []"))
    assert "spec.plugins.pytorch" not in noted(text)
    assert "spec.schedulerName" not in noted(text)
    assert "spec.schedulerName: no counterpart" in noted(text.replace("schedulerName: volcano", "schedulerName: mine"))


def test_a_task_of_volcanos_that_completes_the_job_ends_it_and_other_policies_are_listed() -> None:
    task = "  - {{name: {}, policies: [{}], template: {{spec: {{containers: [{{image: i, command: [x]}}]}}}}}}\n"
    ends, restarts = "{event: TaskCompleted, action: CompleteJob}", "{event: PodFailed, action: RestartJob}"
    head = "apiVersion: batch.volcano.sh/v1alpha1\nkind: Job\nmetadata: {name: x}\nspec:\n  tasks:\n"
    text = head + task.format("master", f"{restarts}, {ends}") + task.format("worker", "")
    spec = convert(text, "f").arguments["job_spec"]
    policies = {name: role["completePolicy"] for name, role in spec["replicaSpecs"].items()}
    assert (spec["completePolicy"], policies) == ("Any", {"master": "All", "worker": "None"})
    listed = "f:6: spec.tasks[0].policies[0]: no counterpart; nearest: restartPolicy, faultTolerantPolicy"
    assert [note for note in noted(text).splitlines() if "policies" in note and note.startswith(listed)]
    assert "policies[1]" not in noted(text)
    without = head + task.format("master", restarts) + task.format("worker", "")
    assert "completePolicy" not in json.dumps(convert(without, "f").arguments["job_spec"])


@pytest.mark.parametrize("how", ["auto", "gpu"])
def test_workers_that_are_left_to_the_devices_are_as_many_as_the_pod_has(how: str) -> None:
    limits = "resources: {limits: {nvidia.com/gpu: 4}},"
    pod = POD.replace("image: i,", f"image: i, {limits}").replace("[python", f"[torchrun, --nproc-per-node={how}")
    (role,) = (
        convert(f"{HEAD}  replicaSpecs: {{worker: {{{pod}}}}}", "f").arguments["job_spec"]["replicaSpecs"].values()
    )
    assert role["slots"] == 4
    train = (JOBS / "train_job.yaml").read_text().replace("numProcPerNode: 2", f"numProcPerNode: {how}")
    devices = train.replace("{cpu: 4,", "{nvidia.com/gpu: '8', cpu: 4,")
    assert convert(devices, "f").arguments["job_spec"]["replicaSpecs"]["worker"]["slots"] == 8
    assert "numProcPerNode" not in noted(devices)


@pytest.mark.parametrize(
    ("roles", "given", "slots"),
    [
        (("Master", "Worker"), "", 8),
        (("Master", "Worker"), "nprocPerNode: auto", 8),
        (("Master", "Worker"), 'nprocPerNode: "2"', 2),
        (("Worker",), "", 3),
        (("Worker",), "nprocPerNode: auto", 8),
    ],
)
def test_torchrun_starts_as_many_workers_as_a_pytorchjobs_operator_tells_it(
    roles: tuple[str, ...], given: str, slots: int
) -> None:
    own = "env: [{name: PET_NPROC_PER_NODE, value: '3'}], resources: {limits: {memory: 1Gi, nvidia.com/gpu: 8}}"
    pod = f"{{template: {{spec: {{containers: [{{name: pytorch, image: i, command: [torchrun, t.py], {own}}}]}}}}}}"
    head = "apiVersion: kubeflow.org/v1\nkind: PyTorchJob\nmetadata: {name: x}\nspec:\n"
    text = f"{head}  {given}\n  pytorchReplicaSpecs: {{{', '.join(f'{role}: {pod}' for role in roles)}}}\n"
    assert convert(text, "f").arguments["job_spec"]["replicaSpecs"]["worker"]["slots"] == slots
    assert "proc" not in noted(text).lower()


@pytest.mark.parametrize(
    "command",
    ['[bash, -c, "torchrun --nnodes=$PET_NNODES --nproc-per-node=${PET_NPROC_PER_NODE} t.py"]',
     '[torchrun, "--nnodes=$(PET_NNODES)", "--nproc-per-node=$(PET_NPROC_PER_NODE)", t.py]'],
)  # fmt: skip
def test_a_launcher_that_asks_kubeflows_variables_has_the_jobs_own_range_of_nodes(command: str) -> None:
    text = re.sub(r"command: .*", lambda _: f"command: {command}", (JOBS / "pytorch_job.yaml").read_text())
    worker = convert(text, "f").arguments["job_spec"]["replicaSpecs"]["worker"]
    assert (worker["minReplicas"], worker["replicas"], worker["slots"]) == (5, 10, 4)


def test_a_rayjobs_entrypoint_is_a_shells_text() -> None:
    text = (JOBS / "ray_job.yaml").read_text()
    there = text.replace("python train.py --epochs 3", "cd /src && X=1 python train.py --epochs 3")
    assert convert(there, "f").arguments["script"] == "/src/train.py"
    several = text.replace("python train.py --epochs 3", "python a.py || python train.py")
    commands = json.loads(*shlex.split(convert(several, "f").arguments["script_args"]))
    assert shlex.split(commands["worker"]) == ["sh", "-c", "python a.py || python train.py"]


def test_an_elastic_jobs_namespace_mode_and_lesser_restart_counts_are_listed() -> None:
    roles = f"{{worker: {{restartCount: 2, {POD}}}, evaluator: {{restartCount: 5, {POD}}}}}"
    text = HEAD.replace("{name: x}", "{name: x, namespace: n}") + f"  optimizeMode: cluster\n  replicaSpecs: {roles}"
    assert convert(text, "f").arguments["max_relaunches"] == 5
    said = noted(text)
    assert "metadata.namespace: no counterpart; nearest: -n of kubectl" in said
    assert "f:5: spec.optimizeMode: no counterpart; nearest: single-job" in said
    assert "f:6: spec.replicaSpecs.worker.restartCount: no counterpart; nearest: --max-relaunches 5" in said
    assert "evaluator.restartCount" not in said


def test_what_an_elastic_job_does_otherwise_after_a_failing_program_is_told() -> None:
    text = f"{HEAD}  replicaSpecs: {{worker: {{{POD.replace('spec: {', 'spec: {restartPolicy: POLICY, ')}}}}}"
    told = "f:5: spec.replicaSpecs.worker.template.spec.restartPolicy: DLRover leaves out a node"
    assert told in noted(text.replace("POLICY", "Never"))
    assert "restartPolicy" not in noted(text.replace("POLICY", "Always"))


ANEW, FAILS = True, False
OF_KUBEFLOW = {
    "Always": (ANEW, ANEW, ANEW), "OnFailure": (ANEW, ANEW, ANEW), "ExitCode": (FAILS, ANEW, ANEW),
    "Never": (FAILS, FAILS, ANEW),
}  # fmt: skip
"""What its operator does when a program exits with 1, with 137, and when a pod is gone: see `convert/restarts.py`."""


def is_restarted(spec: JobSpec, reason: Reason, exit_code: int | None) -> bool:
    """Whether the only role's node goes on after a fault, by the table of faults; else the job must fail."""
    ((role, policies),) = spec.roles.items()
    node = NodeState(f"{role}-0-0", role, 0, 0, "host", 0.0, NodePhase.RUNNING)
    if judgement(State(), spec, node, reason, exit_code).decision is not Decision.GIVE_UP:
        return ANEW
    assert policies.fail_policy is EndingPolicy.ANY
    return FAILS


@pytest.mark.parametrize("policy", OF_KUBEFLOW)
def test_a_pytorchjobs_restart_policy_does_what_kubeflows_operator_does(policy: str) -> None:
    text = (JOBS / "pytorch_job.yaml").read_text().replace("restartPolicy: OnFailure", f"restartPolicy: {policy}")
    spec = spec_of({"job": "j", **convert(text, "f").arguments["job_spec"]})
    faults = ((Reason.USER_ERROR, 1), (Reason.KILLED, 137), (Reason.NODE_LOST, None))
    assert tuple(is_restarted(spec, *fault) for fault in faults) == OF_KUBEFLOW[policy]
    with pytest.raises(ConvertError, match=r"f:\d+: spec\.pytorchReplicaSpecs\.Worker\.restartPolicy: Now is not"):
        convert(text.replace(f"restartPolicy: {policy}", "restartPolicy: Now"), "f")


def test_a_master_that_differs_from_the_workers_is_listed() -> None:
    text = (JOBS / "pytorch_job.yaml").read_text()
    worker = text[text.index("    Worker:\n") :]
    master = worker.replace("Worker:", "Master:").replace("replicas: 10", "replicas: 1")
    assert "spec.pytorchReplicaSpecs.Master: differs" not in noted(text + master)
    differing = text + master.replace("--epochs=10", "--epochs=1")
    assert "spec.pytorchReplicaSpecs.Master: differs from Worker's: no counterpart" in noted(differing)


def test_a_request_beside_another_limit_is_listed() -> None:
    pod = POD.replace("image: i,", "image: i, resources: {requests: {cpu: 2, memory: 1Gi}, limits: {cpu: 4}},")
    text = f"{HEAD}  replicaSpecs: {{worker: {{{pod}}}}}"
    resources = convert(text, "f").arguments["job_spec"]["replicaSpecs"]["worker"]["resources"]
    assert resources == {"cpu": 4, "memory": "1Gi"}
    assert "resources.requests.cpu: 2: no counterpart; nearest: the limit, 4" in noted(text)
    assert "resources.requests.memory: 1Gi: here it is the limit, too; nearest: limits.memory" in noted(text)


def test_what_a_nodes_one_amount_of_memory_changes_is_listed() -> None:
    text = f"{HEAD}  replicaSpecs: {{worker: {{{POD}}}}}"
    place = "f:5: spec.replicaSpecs.worker.template.spec.containers[0].resources"
    assert f"{place}: no memory: nodes have the limit of the train step's own pod" in noted(text)
    limited = text.replace("image: i,", "image: i, resources: {limits: {memory: 1Gi}, claims: [{name: a}]},")
    assert "memory" not in noted(limited)
    assert f"{place}.claims: no counterpart; nearest: devices by the name of a resource" in noted(limited)


def test_a_trainjob_may_leave_its_image_to_the_flag_and_its_workers_to_the_devices() -> None:
    text = (JOBS / "train_job.yaml").read_text()
    without = text.replace("    image: registry.example/mnist:1\n", "").replace(
        "numProcPerNode: 2", "numProcPerNode: gpu"
    )
    with pytest.raises(ConvertError, match=r"f:4: spec: no image: .*--image"):
        convert(without, "f")
    conversion = convert(without, "f", "mine:1")
    assert conversion.pod.image == "mine:1"
    assert conversion.arguments["job_spec"]["replicaSpecs"]["worker"]["slots"] == 1
    assert "spec.trainer.numProcPerNode: gpu: 1 worker a node" in noted(without, "mine:1")
    assert "it must have Everstep" not in noted(without, "mine:1")
