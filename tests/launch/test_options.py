"""What a command line means: a launch, or one line that says what is wrong and how to fix it."""

import math
import os
import re
import signal
import sys
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pytest

from everstep.runtime.agent.logs import Streams
from everstep.runtime.job.spec import Hang, HangPolicy, Placement
from everstep.runtime.launch.flags import Parser
from everstep.runtime.launch.job import Endpoint, Launch, job_of
from everstep.runtime.launch.options import read_launch
from everstep.runtime.launch.rendezvous import parse_conf, split_endpoint


@pytest.fixture(autouse=True)
def here(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A folder with a script."""
    (tmp_path / "train.py").write_text("")
    monkeypatch.chdir(tmp_path)


def read(*arguments: str, environment: Mapping[str, str] | None = None, devices: int = 0) -> Launch:
    """The launch that this command line asks for."""
    options = Parser(environment or {}).parse_args([*arguments, "train.py"])
    return read_launch(options, environment or {}, lambda kind: devices)


def test_without_flags_one_worker_runs_alone_with_the_threads_that_it_wants() -> None:
    launch = read()
    assert (launch.nodes, launch.min_nodes, launch.slots, launch.endpoint) == (1, 1, 1, None)
    assert (launch.threads, launch.sets_threads, launch.max_restarts) == ("", False, 0)
    assert launch.command == ("train.py",)


def test_several_workers_share_the_cores_with_one_thread_each_unless_the_user_said_otherwise() -> None:
    assert (read("--nproc-per-node=2").threads, read("--nproc-per-node=2").sets_threads) == ("1", True)
    options = read("--nproc-per-node=2", environment={"OMP_NUM_THREADS": "4"})
    assert (options.threads, options.sets_threads) == ("4", False)


@pytest.mark.parametrize("kind", ["gpu", "auto", "cpu", "xpu"])
def test_a_kind_of_device_gives_a_worker_for_each(kind: str) -> None:
    assert read(f"--nproc-per-node={kind}", devices=3).slots == 3


@pytest.mark.parametrize(
    ("flags", "meeting", "index"),
    [
        (["--standalone", "--rdzv-endpoint=x:1"], None, -1),
        (["--rdzv-backend=c10d", "--nnodes=1:4", "--rdzv-endpoint=node0:1234"], Endpoint("node0", 1234, None), -1),
        (["--rdzv-backend=c10d", "--nnodes=2", "--rdzv-endpoint=node0"], Endpoint("node0", 29400, None), -1),
        (["--rdzv-backend=c10d", "--nnodes=2"], Endpoint("localhost", 29400, None), -1),
        (["--rdzv-backend=c10d", "--rdzv-endpoint=localhost:0"], None, -1),
        (["--nnodes=2", "--node-rank=1", "--master-addr=10.0.0.1"], Endpoint("10.0.0.1", 29500, False), 1),
        (["--nnodes=2", "--master-addr=[::1]", "--master-port=5"], Endpoint("::1", 5, True), 0),
        (["--nnodes=3", "--node-rank=2", "--rdzv-endpoint=h:7"], Endpoint("h", 7, False), 2),
    ],
)
def test_nodes_meet_where_torchrun_would_let_them(flags: list[str], meeting: Endpoint | None, index: int) -> None:
    launch = read(*flags)
    assert (launch.endpoint, launch.index) == (meeting, index)


def test_one_static_node_gives_its_workers_the_address_and_port_that_were_asked_for() -> None:
    launch = read("--master-port=1234", "--rdzv-id=mine")
    assert (launch.endpoint, launch.workers_endpoint, launch.run_id) == (None, ("127.0.0.1", 1234), "mine")


def test_a_static_rendezvous_takes_all_nodes_or_none() -> None:
    assert read("--nnodes=2:4").min_nodes == 4
    assert read("--nnodes=2:4", "--rdzv-backend=c10d").min_nodes == 2


def test_a_range_of_nodes_at_an_endpoint_is_elastic_whatever_the_backend() -> None:
    launch = read("--nnodes=1:2", "--rdzv-endpoint=node0:1234")
    assert (launch.endpoint, launch.index, launch.min_nodes) == (Endpoint("node0", 1234, None), -1, 1)
    numbered = read("--nnodes=1:2", "--rdzv-endpoint=node0:1234", "--node-rank=1")
    assert (numbered.endpoint, numbered.index, numbered.min_nodes) == (Endpoint("node0", 1234, False), 1, 2)


def test_node_rank_and_dlrovers_master_address_stand_before_torchs_flags() -> None:
    environment = {"NODE_RANK": "2", "DLROVER_MASTER_ADDR": "pod-master-0:23456"}
    launch = read("--nnodes=2:4", "--rdzv-endpoint=other:1", "--max-restarts=3", environment=environment)
    assert (launch.endpoint, launch.index) == (Endpoint("pod-master-0", 23456, False), 2)
    assert (launch.nodes, launch.min_nodes) == (4, 2)
    first = read("--nnodes=4", environment={**environment, "NODE_RANK": "0"})
    assert first.endpoint == Endpoint("pod-master-0", 23456, True)


@pytest.mark.parametrize(
    ("flags", "command", "plain"),
    [
        ([], ("train.py",), False),
        (["-m"], ("-m", "train.py"), False),
        (["--no-python"], ("--no-python", "train.py"), True),
        (["--run-path"], ("--run-path", "train.py"), True),
        (["--run-path", "--start-method=fork"], ("--run-path", "train.py"), False),
        (["--no-fork-server"], ("train.py",), True),
    ],
)
def test_the_script_is_run_as_asked(flags: list[str], command: tuple[str, ...], plain: bool) -> None:
    launch = read(*flags)
    assert (launch.command, launch.plain) == (command, plain)


def test_patience_is_what_the_rendezvous_configuration_says() -> None:
    usual = parse_conf("", static=False)
    assert (usual.join_timeout_s, usual.last_call_s, usual.connect_s) == (600, 30, 60)
    assert (usual.pend_timeout_s, usual.silence_s, usual.is_host) == (math.inf, 30, None)
    options = parse_conf(
        "join_timeout=5,last_call_timeout=1, read_timeout=9,pend_timeout=600,is_host=No,keep_alive_interval=2,"
        "close_timeout=30,store_type=tcp",
        static=False,
    )
    assert (options.join_timeout_s, options.last_call_s, options.connect_s, options.pend_timeout_s) == (5, 1, 9, 600)
    assert (options.silence_s, options.is_host) == (6, False)
    assert parse_conf("timeout=70", static=True).join_timeout_s == 70
    assert parse_conf("", static=True).join_timeout_s == 900


@pytest.mark.parametrize(
    ("text", "endpoint"),
    [("", ("localhost", 3)), ("h", ("h", 3)), ("h:1", ("h", 1)), ("[::1]:5", ("::1", 5)), ("[::1]", ("::1", 3))],
)
def test_an_endpoint_is_a_host_and_perhaps_a_port(text: str, endpoint: tuple[str, int]) -> None:
    assert split_endpoint(text, 3, "--rdzv-endpoint") == endpoint


@pytest.mark.parametrize("flags", [["--no-python"], ["--numa-binding=socket"]], ids=["no Python", "pinned"])
def test_spares_are_refused_where_they_could_not_take_a_workers_place(flags: list[str]) -> None:
    assert read("--spares=1").spares == 1
    with pytest.raises(ValueError, match=rf"--spares 1: not with {flags[0].partition('=')[0]}, .*; leave one out"):
        read("--spares=1", *flags)
    with pytest.raises(ValueError, match="--spares -1: it cannot be negative"):
        read("--spares=-1")


def test_workers_are_bound_to_cpus_where_that_is_asked_for() -> None:
    assert read("--nproc-per-node=2").cpus == ()
    options = Parser({}).parse_args(["--nproc-per-node=2", "--numa-binding=socket", "train.py"])
    launch = read_launch(options, {}, bind=lambda mode, slots: tuple((rank, len(mode)) for rank in range(slots)))
    assert launch.cpus == ((0, 6), (1, 6))


@pytest.mark.parametrize(
    ("flags", "backend", "entry_point"),
    [
        ([], "static", os.path.basename(sys.executable)),
        (["--standalone", "-m"], "c10d", os.path.basename(sys.executable)),
        (["--rdzv-backend=c10d", "--no-python"], "c10d", "train.py"),
        (["--run-path"], "static", "run_script_path"),
    ],
)
def test_events_name_backend_and_entry_point_as_torch_does(flags: list[str], backend: str, entry_point: str) -> None:
    launch = read("--event-log-handler=console", *flags)
    assert (launch.events, launch.backend, launch.entry_point) == ("console", backend, entry_point)


def test_logs_and_signals_are_read() -> None:
    launch = read("-r", "0:1,1:3", "-t", "2", "--local-ranks-filter=0,2", "--signals-to-handle=SIGTERM, SIGUSR1")
    assert [launch.logs.redirects.for_rank(rank) for rank in range(3)] == [1, 3, 0]
    assert (launch.logs.tee, launch.logs.shown_ranks) == (Streams(2), frozenset({0, 2}))
    assert launch.signals == (signal.SIGTERM, signal.SIGUSR1)
    assert launch.environment["TORCHELASTIC_SIGNALS_TO_HANDLE"] == "SIGTERM, SIGUSR1"
    assert read().shutdown_s == 30
    assert read(environment={"TORCH_ELASTIC_SHUTDOWN_TIMEOUT": "7"}).shutdown_s == 7
    assert read("--shutdown-timeout=5", environment={"TORCH_ELASTIC_SHUTDOWN_TIMEOUT": "7"}).shutdown_s == 5


def test_a_hang_restarts_the_job_where_restarts_are_allowed() -> None:
    assert (read().hang.policy, read().hang.timeout_s) == (HangPolicy.FAIL, 300)
    assert read("--max-restarts=1").hang.policy is HangPolicy.RESTART
    assert read("--on-hang=report", "--hang-timeout=5").hang == Hang(HangPolicy.REPORT, 5)


def test_a_named_job_keeps_its_name_in_the_store() -> None:
    assert read("--standalone", "--store=s", "--rdzv-id=mine").run_id == "mine"
    assert read("--standalone", "--rdzv-id=mine").run_id != "mine", "torchrun does not hear it either"


DLROVER = {"DLROVER_MASTER_ADDR": "h:1"}


@pytest.mark.parametrize(
    ("flags", "environment", "words"),
    [
        (["--rdzv-backend=etcd"], {}, "etcd is not supported"),
        (["--rdzv-backend=etcd-v2"], {}, "etcd is not supported"),
        (["--rdzv-backend=mine"], {}, "--rdzv-backend mine: unknown"),
        (["--logs-specs=x"], {}, "--logs-specs x: no entry point torchrun.logs_specs[x]"),
        (["--exclude-straggler"], {}, "part of --network-check"),
        (["--switchbox-check"], {}, "part of --network-check"),
        (["--network-check", "--switchbox-check", "--box-pairs=0:0"], {}, "--box-pairs"),
        (["--nnodes=0"], {}, "--nnodes 0"),
        (["--nnodes=3:2"], {}, "--nnodes 3:2"),
        (["--nnodes=a"], {}, "--nnodes a"),
        (["--nnodes=1:2:3"], {}, "--nnodes 1:2:3"),
        (["--nproc-per-node=0"], {}, "--nproc-per-node 0"),
        (["--nproc-per-node=many"], {}, "--nproc-per-node many"),
        (["--nproc-per-node=gpu"], {}, "no such device"),
        (["--standalone", "--nnodes=2"], {}, "--standalone, but 2 nodes are requested"),
        (["--rdzv-backend=c10d", "--nnodes=2", "--rdzv-endpoint=h:0"], {}, "no other node can find port 0"),
        (["--rdzv-backend=c10d", "--rdzv-endpoint=h:x"], {}, "'x' is not a port"),
        (["--rdzv-backend=c10d", "--rdzv-endpoint=h:99999"], {}, "'99999' is not a port"),
        (["--rdzv-backend=c10d", "--rdzv-endpoint=a b:1"], {}, "neither a host's name nor an address"),
        (["--nnodes=2", "--rdzv-endpoint=h"], {}, "needs a port"),
        (["--nnodes=2", "--node-rank=2"], {}, "--node-rank 2"),
        (["--nnodes=2"], {**DLROVER}, "set NODE_RANK"),
        (["--nnodes=2"], {**DLROVER, "NODE_RANK": "2"}, "NODE_RANK=2"),
        (["--nnodes=2"], {"DLROVER_MASTER_ADDR": "h", "NODE_RANK": "0"}, "the port is missing"),
        (["--rdzv-conf=join_timeout"], {}, "not KEY=VALUE"),
        (["--rdzv-conf=join_timeout=-1"], {}, "not a number above 0"),
        (["--rdzv-conf=jion_timeout=1"], {}, "jion_timeout is unknown"),
        (["--rdzv-conf=store_type=file"], {}, "only tcp"),
        (["--rdzv-conf=is_host=perhaps"], {}, "give true or false"),
        (["--max-restarts=-1"], {}, "--max-restarts -1"),
        (["--shutdown-timeout=-1"], {}, "--shutdown-timeout -1"),
        ([], {"TORCH_ELASTIC_SHUTDOWN_TIMEOUT": "x"}, "TORCH_ELASTIC_SHUTDOWN_TIMEOUT=x"),
        (["--signals-to-handle=SIGKILL"], {}, "'SIGKILL'"),
        (["--signals-to-handle=SIGNONE"], {}, "'SIGNONE'"),
        (["--redirects=4"], {}, "--redirects 4"),
        (["--tee=0:1,a"], {}, "--tee 0:1,a"),
        (["--local-ranks-filter=0,a"], {}, "--local-ranks-filter 0,a"),
        (["--log-dir=train.py"], {}, "a file"),
        (["--no-python", "-m"], {}, "contradict each other"),
        (["--persist-interval=0"], {}, "--persist-interval 0"),
        (["--checkpoint-overhead=much"], {}, "--checkpoint-overhead much: give a share"),
        (["--persist-bytes-per-s=-1"], {}, "--persist-bytes-per-s -1"),
        (["--nnodes=1:8", "--node-unit=0"], {}, "--node-unit 0"),
        (["--nnodes=3:5", "--node-unit=6"], {}, "--node-unit 6: no multiple of it is within --nnodes 3:5"),
        (["--cooldown=-1"], {}, "--cooldown -1"),
        (["--cooldown=nan"], {}, "--cooldown nan"),
        (["--cooldown=inf"], {}, "--cooldown inf"),
        (["--hang-timeout=inf"], {}, "--hang-timeout inf"),
        (["--rdzv-conf=join_timeout=inf"], {}, "join_timeout=inf: not a number above 0"),
        (["--hang-timeout=0"], {}, "--hang-timeout 0"),
    ],
    ids=lambda value: " ".join(value) if isinstance(value, list) else "",
)
def test_what_cannot_be_is_refused_by_name_in_one_line(flags: list[str], environment: Any, words: str) -> None:
    with pytest.raises(ValueError, match="") as raised:
        read(*flags, environment=environment)
    assert words in str(raised.value)
    assert "\n" not in str(raised.value)


def test_a_round_has_a_multiple_of_the_node_unit() -> None:
    launch = read("--nnodes=3:8", "--rdzv-endpoint=h:1", "--node-unit=2")
    (role,) = job_of(launch, "j").roles.values()
    assert (role.min_nodes, role.nodes, role.node_unit, role.least) == (3, 8, 2, 4)


def test_a_script_that_does_not_exist_is_refused() -> None:
    options = Parser({}).parse_args(["--standalone", "missing.py"])
    with pytest.raises(ValueError, match=r"missing\.py: no such file"):
        read_launch(options, {})


SPEC = """
patience: {coolDown: 5, maxRestarts: 2}
hang: {policy: report}
replicaSpecs:
  ps: {replicas: 1}
  worker: {replicas: 3, minReplicas: 2, slots: 4, nodeUnit: 3}
"""


def test_a_job_spec_says_what_the_job_is_and_role_which_node_this_is(tmp_path: Path) -> None:
    (tmp_path / "roles.yaml").write_text(f"job: llama{SPEC}")
    launch = read("--job-spec=roles.yaml", "--role=worker", "--rdzv-endpoint=h:1")
    assert (launch.role, launch.role_name, launch.slots, launch.nodes, launch.min_nodes) == (
        "worker",
        "worker",
        4,
        4,
        3,
    )
    assert (launch.endpoint, launch.run_id, launch.max_restarts) == (Endpoint("h", 1, None), "llama", 2)
    job = job_of(launch, "llama-1")
    assert (job.job, job.placement, job.hosts) == ("llama-1", Placement.JOINED, "")
    assert (job.patience.cooldown_s, job.hang.policy) == (5, HangPolicy.REPORT)
    assert {name: (role.nodes, role.min_nodes) for name, role in job.roles.items()} == {"ps": (1, 1), "worker": (3, 2)}


@pytest.mark.parametrize(
    ("spec", "flags", "retention"),
    [
        ("", (), (3, 0)), ("", ("--keep-last=0",), (0, 0)), ("", ("--keep-every=7",), (3, 7)),
        ("keepLast: 5", (), (5, 0)), ("keepLast: 0", (), (0, 0)), ("keepEvery: 9", ("--keep-last=0",), None),
    ],
)  # fmt: skip
def test_three_checkpoints_stay_unless_a_flag_or_the_spec_says_otherwise(
    tmp_path: Path, spec: str, flags: tuple[str, ...], retention: tuple[int, int] | None
) -> None:
    (tmp_path / "roles.yaml").write_text(f"{SPEC}{spec}\n")
    flags_of_role = ("--job-spec=roles.yaml", "--role=worker", "--rdzv-endpoint=h:1", *flags)
    if retention is None:
        with pytest.raises(ValueError, match="with keep_last 0 every checkpoint is kept"):
            read(*flags_of_role)
        return
    job = job_of(read(*flags_of_role), "llama-1")
    assert (job.keep_last, job.keep_every) == retention
    if not spec:
        alone = job_of(read("--standalone", *flags), "llama-1")
        assert (alone.keep_last, alone.keep_every) == retention


@pytest.mark.parametrize(
    ("spec", "flags", "copies"),
    [("", (), 1), ("", ("--peer-copies=2",), 2), ("peerCopies: 3", (), 3), ("", ("--peer-copies=0",), 0)],
)
def test_another_node_keeps_one_copy_unless_a_flag_or_the_spec_says_otherwise(
    tmp_path: Path, spec: str, flags: tuple[str, ...], copies: int
) -> None:
    (tmp_path / "roles.yaml").write_text(f"{SPEC}{spec}\n")
    of_role = ("--job-spec=roles.yaml", "--role=worker", "--rdzv-endpoint=h:1", *flags)
    assert job_of(read(*of_role), "llama-1").peer_copies == copies
    if not spec:
        assert job_of(read("--standalone", *flags), "llama-1").peer_copies == copies


@pytest.mark.parametrize(
    ("flags", "words"),
    [
        ([], "--role: roles.yaml has the roles ps, worker; choose this node's role"),
        (["--role=chief"], "--role chief: roles.yaml has no such role, only ps, worker"),
        (["--role=worker", "--nproc-per-node=2"], "line 6: replicaSpecs.worker.slots: 4 here, but --nproc-per-node sa"),
        (["--role=worker", "--node-unit=2"], "line 6: replicaSpecs.worker.nodeUnit: 3 here, but --node-unit says 2"),
        (["--role=worker", "--nnodes=1:3"], "line 6: replicaSpecs.worker.minReplicas: 2 here, but --nnodes says 1"),
        (["--role=ps", "--max-restarts=3"], "line 2: patience.maxRestarts: 2 here, but --max-restarts says 3"),
        (["--role=ps", "--rdzv-conf=join_timeout=0.5,last_call_timeout=7", "--on-hang=fail"], "but --on-hang says"),
        (["--role=ps", "--nnodes=4", "--node-rank=1", "--master-addr=h"], "replicaSpecs.ps.replicas: 1 here"),
        (["--role=ps", "--node-rank=1", "--master-addr=h"], "nodes of several roles have no ranks"),
        (["--role=ps"], "give only --rdzv-endpoint HOST:PORT"),
        (["--role=ps", "--standalone"], "--standalone, but 4 nodes are requested"),
    ],
)
def test_a_job_spec_and_the_flags_may_not_contradict_each_other(tmp_path: Path, flags: list[str], words: str) -> None:
    (tmp_path / "roles.yaml").write_text(SPEC)
    with pytest.raises(ValueError, match=re.escape(words)) as caught:
        read("--job-spec=roles.yaml", *flags)
    assert "\n" not in str(caught.value)


def test_a_spec_for_nodes_that_are_made_is_refused_where_nodes_come_by_themselves(tmp_path: Path) -> None:
    (tmp_path / "roles.yaml").write_text("replicaSpecs:\n  worker: {replicas: 1, resources: {cpu: 1}}\n")
    with pytest.raises(
        ValueError, match=r"roles.yaml line 2: replicaSpecs.worker.resources: is not possible for nodes that join by"
    ):
        read("--job-spec=roles.yaml")
    with pytest.raises(ValueError, match=r"--job-spec no.yaml: No such file"):
        read("--job-spec=no.yaml")
