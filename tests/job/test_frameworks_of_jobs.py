"""Jobs of other frameworks than torch: what the spec allows, and what a seat says of the round."""

from everstep.runtime.job.assignments import seat
from everstep.runtime.job.events import NodeGone
from everstep.runtime.job.reasons import JobResult
from everstep.runtime.job.records import JobEnded, NodeRequested
from everstep.runtime.job.spec import GIB, EndingPolicy, JobSpec, Patience, Resources, RoleSpec
from everstep.runtime.job.spec_problems import problems
from everstep.runtime.job.spec_reader import spec_of
from everstep.runtime.protocol.rounds import Framework
from tests.job.world import World, platform

SERVERS = {
    "ps": RoleSpec(1, 1, complete_policy=EndingPolicy.NONE, resources=Resources(memory_bytes=4 * GIB)),
    "chief": RoleSpec(1, 1, resources=Resources(memory_bytes=4 * GIB)),
    "worker": RoleSpec(2, 1, resources=Resources(memory_bytes=4 * GIB)),
}


def job(framework: Framework = Framework.TENSORFLOW) -> World:
    world = World(platform(SERVERS, framework=framework))
    world.join_all()
    return world


def wrong(framework: Framework, roles: dict[str, RoleSpec]) -> list[str]:
    return problems(JobSpec("j", roles, framework=framework))


def test_the_file_says_it_as_aitrainingjob_does() -> None:
    text = "job: j\nframeworkType: Paddle\nreplicaSpecs: {worker: {replicas: 2}}\n"
    assert spec_of(text).framework is Framework.PADDLE


def test_tensorflows_roles_are_its_tasks() -> None:
    assert wrong(Framework.TENSORFLOW, SERVERS) == []
    assert wrong(Framework.TENSORFLOW, {"server": RoleSpec(1, 1)}) == [
        "roles.server: framework tensorflow has the roles chief, worker, ps, evaluator"
    ]
    assert wrong(Framework.TENSORFLOW, {"chief": RoleSpec(2, 1)}) == [
        "roles.chief.nodes: TensorFlow's cluster has one chief"
    ]
    assert len(wrong(Framework.TENSORFLOW, {"worker": RoleSpec(1, 1, slots=2)})) == 1


def test_horovod_needs_a_launcher_and_hosts() -> None:
    assert wrong(Framework.HOROVOD, {"launcher": RoleSpec(1, 1), "trainer": RoleSpec(3, 1)}) == []
    assert len(wrong(Framework.HOROVOD, {"trainer": RoleSpec(3, 1)})) == 1
    assert len(wrong(Framework.HOROVOD, {"launcher": RoleSpec(1, 1)})) == 1


def test_a_seat_names_all_members_with_a_port_of_each() -> None:
    world = job()
    seat_of_chief = seat(world.state, "worker-1-0")
    assert seat_of_chief is not None
    assert seat_of_chief.framework is Framework.TENSORFLOW
    assert {role: [member.node for member in members] for role, members in seat_of_chief.members.items()} == {
        "ps": ["ps-0-0"], "chief": ["chief-0-0"], "worker": ["worker-0-0", "worker-1-0"],
    }  # fmt: skip
    ports = [member.port for members in seat_of_chief.members.values() for member in members]
    assert ports == [world.state.nodes[member.node].master_port for m in seat_of_chief.members.values() for member in m]


def test_a_seat_of_torch_names_nobody_else() -> None:
    seat_of_torch = seat(job(Framework.PYTORCH).state, "worker-1-0")
    assert seat_of_torch is not None
    assert seat_of_torch.members == {}


def test_each_role_that_runs_out_of_memory_gets_8_gib_after_4() -> None:
    for node in ("chief-0-0", "worker-0-0", "ps-0-0"):
        world = job()
        world.exit(node, -9, oom=True)
        last_request = [record for record in world.records if isinstance(record, NodeRequested)][-1]
        assert (last_request.node, last_request.memory_bytes) == (f"{node[:-2]}-1", 8 * GIB)


def test_memory_is_raised_up_to_the_limit_and_then_the_job_fails() -> None:
    world = World(platform(SERVERS, framework=Framework.TENSORFLOW, patience=Patience(max_relaunches=20)))
    world.join_all()
    sizes = []
    for launch in range(20):
        if any(isinstance(record, JobEnded) for record in world.records):
            break
        world.send(NodeGone(f"ps-0-{launch}", "OOMKilled", 247))
        sizes.append([record for record in world.records if isinstance(record, NodeRequested)][-1].memory_bytes // GIB)
        world.join_all()
    assert sizes[:-1] == [8, 16, 24, 32, 40, 48, 56, 64]
    (end_record,) = [record for record in world.records if isinstance(record, JobEnded)]
    assert end_record.result is JobResult.FAILED
    assert "64 GiB, the most it may get" in end_record.reason
