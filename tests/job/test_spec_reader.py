"""A job's YAML: what it means, and how what is wrong with it is told."""

import json

import pytest

from everstep.runtime.job.spec import (
    GIB,
    CleanPodPolicy,
    EndingPolicy,
    FaultRule,
    HangPolicy,
    JobSpec,
    NodeEvent,
    Oom,
    Patience,
    Placement,
    ReplicaType,
    Resources,
    RestartPolicy,
    RestartScope,
    RoleSpec,
)
from everstep.runtime.job.spec_reader import FlagValue, SpecError, spec_of
from everstep.runtime.job.spec_values import Wrong, quantity
from everstep.runtime.job.spec_writer import mapping_of
from everstep.runtime.protocol.rounds import Framework

SEED = """
job: horovod-elastic
cleanPodPolicy: None
completePolicy: Any
failPolicy: Any
frameworkType: horovod
faultTolerant: true
priority: normal
schedulerName: volcano
timeLimit: 7200
topology: |
  asw-0 psw-0 192.168.0.0
  asw-1 psw-0 192.168.0.1
hang: {policy: report, timeout: 60}
oom: {factor: 1.5, increment: 4Gi, limit: 32Gi}
patience: {coolDown: 5, maxRestarts: 1}
replicaSpecs:
  launcher:
    replicas: 1
    replicaType: master
    completePolicy: All
    failPolicy: Any
    faultTolerantPolicy:
      - exitCodes: 129,101
        restartPolicy: ExitCode
        restartScope: Pod
      - exceptionalEvent: nodeNotReady
        restartPolicy: OnNodeFail
        restartScope: Pod
    restartLimit: 100
    restartPolicy: OnNodeFailWithExitCode
    restartTimeLimit: 60
    restartTimeout: 864000
    waitsFor: [trainer]
  trainer:
    replicas: 3
    minReplicas: 1
    maxReplicas: 5
    completePolicy: None
    faultTolerantPolicy:
      - exceptionalEvent: "nodeNotReady,PodForceDeleted"
        restartScope: All
    priority: 2
    resources: {cpu: 500m, memory: 4Gi, baidu.com/v100_32g_cgpu: "1"}
"""


def test_the_fields_of_an_ai_training_job_mean_what_they_say() -> None:
    spec = spec_of(SEED)
    assert spec.clean_pod_policy is CleanPodPolicy.NONE
    assert (spec.complete_policy, spec.fail_policy) == (EndingPolicy.ANY, EndingPolicy.ANY)
    assert spec.topology == ("asw-0 psw-0 192.168.0.0", "asw-1 psw-0 192.168.0.1")
    assert (spec.hang.policy, spec.hang.timeout_s) == (HangPolicy.REPORT, 60.0)
    assert (spec.oom.factor, spec.oom.increment_bytes, spec.oom.limit_bytes) == (1.5, 4 * GIB, 32 * GIB)
    assert (spec.patience.cooldown_s, spec.patience.max_restarts) == (5.0, 1)
    assert (spec.framework, spec.fault_tolerant, spec.priority_class) == (Framework.HOROVOD, True, "")
    assert (spec.scheduler_name, spec.time_limit_s) == ("volcano", 7200.0)
    launcher, trainer = spec.roles["launcher"], spec.roles["trainer"]
    assert (launcher.replica_type, trainer.replica_type) == (ReplicaType.MASTER, ReplicaType.WORKER)
    assert launcher.fault_rules == (
        FaultRule((129, 101), (), RestartPolicy.EXIT_CODE, RestartScope.POD),
        FaultRule((), (NodeEvent.NODE_NOT_READY,), RestartPolicy.ON_NODE_FAIL, RestartScope.POD),
    )
    assert launcher.restart_policy is RestartPolicy.ON_NODE_FAIL_WITH_EXIT_CODE
    assert (launcher.restart_limit, launcher.restart_time_limit_s, launcher.restart_timeout_s) == (100, 60.0, 864000.0)
    assert (launcher.nodes, launcher.min_nodes, launcher.most, launcher.waits_for) == (1, 1, 1, ("trainer",))
    assert (trainer.nodes, trainer.min_nodes, trainer.most, trainer.priority) == (3, 1, 5, 2)
    assert trainer.fault_rules[0].events == (NodeEvent.NODE_NOT_READY, NodeEvent.POD_FORCE_DELETED)
    assert trainer.resources == Resources(0.5, 4 * GIB, {"baidu.com/v100_32g_cgpu": 1.0})


def test_a_job_that_tolerates_no_fault_restarts_only_roles_that_say_how() -> None:
    spec = spec_of(SEED.replace("faultTolerant: true", "faultTolerant: false"))
    policies = {name: role.restart_policy for name, role in spec.roles.items()}
    assert policies == {"launcher": RestartPolicy.ON_NODE_FAIL_WITH_EXIT_CODE, "trainer": RestartPolicy.NEVER}
    assert spec_of(mapping_of(spec)) == spec


def test_a_role_may_name_nothing_but_its_policy_and_rules_of_events() -> None:
    rule = "    - exceptionalEvent: nodeNotReady,PodForceDeleted\n      restartPolicy: OnNodeFail\n"
    spec = spec_of(f"{BASE}    restartPolicy: OnNodeFailWithExitCode\n    faultTolerantPolicy:\n{rule}")
    assert spec.roles["worker"].restart_policy is RestartPolicy.ON_NODE_FAIL_WITH_EXIT_CODE


def test_a_dictionary_reads_like_the_same_yaml() -> None:
    raw_spec = {"job": "j", "placement": "joined", "replicaSpecs": {"worker": {"replicas": 2, "minReplicas": 1}}}
    expected = JobSpec("j", {"worker": RoleSpec(2, 1)}, placement=Placement.JOINED)
    assert spec_of(raw_spec) == expected
    assert spec_of("job: j\nplacement: joined\nreplicaSpecs: {worker: {replicas: 2, minReplicas: 1}}") == expected


@pytest.mark.parametrize(
    ("written", "amount"),
    [
        ("500m", 0.5), (1.5, 1.5), ("4Gi", 4 * GIB), ("2Ti", 2048 * GIB), ("1Ei", GIB**2), ("2147480k", 2147480000.0),
        ("1K", 1000.0), ("1E", 1e18), ("1e9", 1e9), ("1E3", 1e3), (1e22, 1e22), ("5.", 5.0), (".5", 0.5), ("+1", 1.0),
        ("250u", 250e-6),
    ],
)  # fmt: skip
def test_an_amount_is_written_as_kubernetes_takes_and_answers_it(written: object, amount: float) -> None:
    assert quantity(written) == pytest.approx(amount)


@pytest.mark.parametrize(
    "written", ["", "much", "-1", "1 Gi", "1gi", "1e400", "9" * 400, "1e", "Gi", True, None, "\u0663"]
)
def test_what_is_no_amount_is_refused(written: object) -> None:
    with pytest.raises(Wrong, match="an amount like 8"):
        quantity(written)


def test_nodes_may_have_what_their_roles_ask_for_unless_a_lower_limit_is_written() -> None:
    large = f"{BASE}    resources: {{memory: 2Ti}}\n"
    assert spec_of(large).oom.limit_bytes == 2048 * GIB
    assert spec_of(f"{large}oom: {{factor: 3}}\n").oom == Oom(3.0, limit_bytes=2048 * GIB)
    assert spec_of(f"{BASE}    resources: {{memory: 1Gi}}\n").oom == Oom()
    with pytest.raises(SpecError, match=r"its memory is more than oom\.limit_bytes, 68719476736"):
        spec_of(f"{large}oom: {{limit: 64Gi}}\n")


BASE = "job: j\nreplicaSpecs:\n  worker:\n    replicas: 2\n"


@pytest.mark.parametrize(
    ("text", "line"),
    [
        (BASE + "    minReplica: 1\n", "job.yaml line 5: replicaSpecs.worker.minReplica: unknown; did you mean minR"),
        (BASE + "    min_nodes: 1\n", "line 5: replicaSpecs.worker.min_nodes: unknown; did you mean minReplicas?"),
        (BASE + "    minReplicas: 3\n", "line 5: replicaSpecs.worker.minReplicas: 3 is more than nodes, 2"),
        (BASE + "    minReplicas: two\n", "line 5: replicaSpecs.worker.minReplicas: 'two' is not a whole number"),
        (BASE + "    restartPolicy: Sometimes\n", "is not one of Always, OnFailure, Never, ExitCode, OnNodeFail"),
        (BASE + "    restartPolicy: ExitCode\n", "line 5: replicaSpecs.worker.restartPolicy: ExitCode needs a fault"),
        (BASE + "    waitsFor: ps\n", "line 5: replicaSpecs.worker.waitsFor: the job has no role 'ps', only worker"),
        (BASE + "    waitsFor: worker\n", "line 5: replicaSpecs.worker.waitsFor: worker wait for each other"),
        (BASE + "    resources: {memory: lots}\n", "line 5: replicaSpecs.worker.resources.memory: 'lots' is not an am"),
        (BASE + "    faultTolerantPolicy:\n    - exitCodes: 7-300\n", "line 6: replicaSpecs.worker.faultTolerantPolic"),
        (BASE + "    faultTolerantPolicy:\n    - restartScope: All\n", "give it either exit codes or events"),
        (
            BASE + "    template: {spec: {volume: []}}\n",
            "line 5: replicaSpecs.worker.template: this is not",
        ),
        (BASE + "    nodeUnit: 3\n", "line 5: replicaSpecs.worker.nodeUnit: no multiple of 3 lies between 2 and 2"),
        (BASE + "    replicas: 3\n", "job.yaml line 5: replicas: appears twice"),
        (BASE + "plugin: {ssh: []}\n", "job.yaml line 5: plugin: not needed: with frameworkType"),
        (BASE + "faultTolerant: perhaps\n", "job.yaml line 5: faultTolerant: 'perhaps' is not true or false"),
        (BASE + "timeLimit: -1\n", "job.yaml line 5: timeLimit: -1 is not a number of seconds, 0 or more"),
        (BASE + "priority: 3\n", "job.yaml line 5: priority: 3 is not the name of a PriorityClass"),
        (BASE + "    replicaType: boss\n", "line 5: replicaSpecs.worker.replicaType: 'boss' is not one of master, wo"),
        (BASE + "placement: joined\npriority: high\n", "line 6: priority: nodes that join by themselves"),
        (BASE + "frameworkType: horovod\n", "job.yaml line 5: frameworkType: horovod needs a role launcher"),
        (BASE + "placement: joined\nhang: {timeout: 0}\n", "line 6: hang.timeout: 0 is not above 0"),
        (BASE + "patience: {silence: -1}\n", "line 5: patience.silence: -1 is not a number of seconds, 0 or more"),
        (BASE + "completePolicy: None\n", "line 5: completePolicy: None would never let the job succeed"),
        (BASE + "topology: asw-0 10.0.0.1\n", "line 5: topology: line 1: 2 words; write ACCESS-SWITCH"),
        ("job: j\n", "job.yaml line 1: replicaSpecs: missing"),
        ("job: j\nreplicaSpecs: [worker]\n", "job.yaml line 2: replicaSpecs: a mapping from roles"),
        ("- a\n", "job.yaml: a mapping is needed"),
        ("", "job.yaml: a mapping is needed"),
        ("job: [\n", "job.yaml line 2:"),
        (BASE + "    3: x\n", "job.yaml line 5: 3: is not a valid field name"),
    ],
)
def test_what_is_wrong_is_told_by_name_and_line(text: str, line: str) -> None:
    with pytest.raises(SpecError) as caught:
        spec_of(text)
    assert any(line in problem for problem in caught.value.problems), caught.value.problems
    assert all("\n" not in problem for problem in caught.value.problems)


def test_everything_wrong_is_told_at_once_in_the_order_of_the_lines() -> None:
    with pytest.raises(SpecError) as caught:
        spec_of("jib: j\nreplicaSpecs:\n  worker: {replicas: x, slot: 1}\n")
    assert [problem.split(": ")[:2] for problem in caught.value.problems] == [
        ["job.yaml line 1", "jib"],
        ["job.yaml line 1", "job"],
        ["job.yaml line 3", "replicaSpecs.worker.replicas"],
        ["job.yaml line 3", "replicaSpecs.worker.slot"],
    ]


def test_nodes_that_come_by_themselves_have_no_resources_to_ask_for() -> None:
    with pytest.raises(SpecError, match=r"replicaSpecs\.worker\.priority: .*nodes that join by themselves"):
        spec_of(BASE + "    priority: 1\nplacement: joined\n")


def test_what_flags_say_fills_in_what_the_file_leaves_out() -> None:
    flags_said = [
        FlagValue("--job", ("job",), "j"),
        FlagValue("--min-nodes", ("replicaSpecs", "worker", "minReplicas"), 1),
        FlagValue("--max-restarts", ("patience", "maxRestarts"), 7),
    ]
    expected = JobSpec("j", {"worker": RoleSpec(2, 1)}, Patience(max_restarts=7))
    assert spec_of("replicaSpecs:\n  worker: {replicas: 2}\n", flags=flags_said) == expected
    assert spec_of(BASE + "patience: {maxRestarts: 7}\n", flags=flags_said) == expected


@pytest.mark.parametrize(
    ("flag_value", "line"),
    [
        (
            FlagValue("--nodes", ("replicaSpecs", "worker", "replicas"), 3),
            "job.yaml line 4: replicaSpecs.worker.replicas: 2 here, but --nodes says 3; say it in one place",
        ),
        (
            FlagValue("--nodes", ("replicaSpecs", "ps", "replicas"), 3),
            "job.yaml line 2: replicaSpecs: --nodes refers to ps; ",
        ),
        (
            FlagValue("--min-nodes", ("replicaSpecs", "worker", "minReplicas"), 3),
            "job.yaml: --min-nodes: 3 is more than",
        ),
        (FlagValue("--job", ("job",), "other"), "job.yaml line 1: job: 'j' here, but --job says 'other'"),
    ],
)
def test_what_flag_and_file_say_otherwise_is_refused_by_both_names(flag_value: FlagValue, line: str) -> None:
    with pytest.raises(SpecError) as caught:
        spec_of(BASE, flags=[flag_value])
    assert any(line in problem for problem in caught.value.problems), caught.value.problems


def test_what_is_not_said_firmly_gives_way_to_the_file() -> None:
    assert spec_of(BASE, flags=[FlagValue("--job", ("job",), "other", firm=False)]).job == "j"


def test_a_spec_made_in_python_is_written_as_what_reads_the_same() -> None:
    spec = spec_of(SEED)
    assert spec_of(json.dumps(mapping_of(spec))) == spec
    assert mapping_of(spec_of(BASE)) == {"job": "j", "replicaSpecs": {"worker": {"replicas": 2}}}
