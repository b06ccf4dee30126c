"""Volcano's Job (batch.volcano.sh/v1alpha1)."""

from dataclasses import replace
from typing import Any

from everstep.convert.field_reader import Fields
from everstep.convert.kinds.volcano_mpi import IN_MASTER, has_mpi, with_mpi
from everstep.convert.kinds.volcano_volumes import with_volumes
from everstep.convert.names import role_name
from everstep.convert.pods import read_pod, read_texts
from everstep.convert.run_policy import read_run
from everstep.convert.source import Role, SourceJob
from everstep.runtime.protocol.rounds import Framework

_INDEX = ("VC_TASK_INDEX", "VK_TASK_INDEX")
_SVC = (
    "VC_<ROLE>_NUM and VC_<ROLE>_HOSTS are those of the round, with addresses as hosts; there is no /etc/volcano, and "
    "pods have no names of their own; nearest: these variables, or MASTER_ADDR"
)
_COMPLETES = {"event": "TaskCompleted", "action": "CompleteJob"}


def read(fields: Fields) -> SourceJob:
    """Raises ConvertError."""
    count = fields.length("spec", "tasks")
    if not count:
        raise fields.wrong("missing: at least one task", "spec", "tasks")
    if fields.text_at("spec", "schedulerName") == "volcano":  # As --gang volcano has it.
        fields.skip(str, "spec", "schedulerName")
    arguments: dict[str, object] = {"gang": "volcano"}
    if fields.has("spec", "queue"):
        arguments["queue"] = fields.take(str, "spec", "queue")
    if fields.has("spec", "priorityClassName"):
        arguments["priority_class"] = fields.take(str, "spec", "priorityClassName")
    if fields.has("spec", "maxRetry"):
        arguments["max_restarts"] = fields.count("spec", "maxRetry")
    if "pytorch" in fields.keys("spec", "plugins"):  # Its variables are there.
        read_texts(fields, ("spec", "plugins", "pytorch"))
    policies, variables, operators = _variables(fields, count)
    if mpi := has_mpi(fields):
        policies, operators = {"frameworkType": Framework.HOROVOD.value}, IN_MASTER
    completing = [number for number in range(count) if _completes(fields, number)]
    policies |= {"completePolicy": "Any"} if completing else {}
    roles = [_role(fields, number, least, operators) for number, least in enumerate(_minima(fields, count))]
    if completing:
        ends = ["All" if number in completing else "None" for number in range(count)]
        roles = [
            replace(role, policies={**role.policies, "completePolicy": end})
            for role, end in zip(roles, ends, strict=True)
        ]
    roles = with_mpi(fields, roles) if mpi else roles
    mounting, claims = with_volumes(fields, roles)
    return SourceJob(mounting, arguments, policies, variables, run=read_run(fields, "spec"), claims=claims)


def _variables(fields: Fields, count: int) -> tuple[dict[str, Any], dict[str, str], dict[str, str]]:
    """(the job spec's frameworkType, the values that are known here of what the plugin svc sets in all pods, the names
    of all that is set with those of the worker's variables) for the plugins env and svc. Raises ConvertError."""
    plugins = [name for name in ("env", "svc") if fields.has("spec", "plugins", name) and not has_mpi(fields)]
    for name in plugins:
        read_texts(fields, ("spec", "plugins", name))
    if not plugins:
        return {}, {}, {}
    variables, operators = dict[str, str](), {name: name for name in _INDEX}
    if "svc" in plugins:
        fields.note(_SVC, "spec", "plugins", "svc")
    for number in range(count) if "svc" in plugins else ():
        name = fields.text_at("spec", "tasks", number, "name")
        task, role = name.upper().replace("-", "_"), role_name(name).upper()
        variables[f"VC_{task}_NUM"] = str(fields.count("spec", "tasks", number, "replicas", default=1))
        operators |= {f"VC_{task}_{what}": f"VC_{role}_{what}" for what in ("HOSTS", "NUM")}
        if task != role:
            where = ("spec", "tasks", number, "name")
            fields.note(f"VC_{task}_HOSTS and VC_{task}_NUM are VC_{role}_HOSTS and VC_{role}_NUM here", *where)
    return {"frameworkType": "volcano"}, variables, operators


def _completes(fields: Fields, number: int) -> bool:
    """Whether the job ends when this task does."""
    path = ("spec", "tasks", number, "policies")
    for place in range(fields.length(*path)):
        policy = (*path, place)
        if {name: fields.text_at(*policy, name) for name in fields.keys(*policy)} == _COMPLETES:
            fields.take(dict, *policy)
            return True
    return False


def _minima(fields: Fields, count: int) -> list[int]:
    """The nodes with which each task begins. As in Volcano's job_info.go (CheckTaskReady) the tasks' own minima count
    unless the job's is below their sum; what the job can do without are the last tasks' nodes. Raises ConvertError."""
    tasks = [("spec", "tasks", number) for number in range(count)]
    nodes = [fields.count(*task, "replicas", default=1) for task in tasks]
    own = [fields.count(*task, "minAvailable", default=n, most=n) for task, n in zip(tasks, nodes, strict=True)]
    of_job = fields.count("spec", "minAvailable", default=sum(own), most=sum(nodes)) or sum(own)
    spare, minima = sum(nodes) - of_job, list[int]()
    for most, least in zip(reversed(nodes), reversed(own), strict=True):
        minima.insert(0, max(1 if of_job < sum(own) else least, most - spare))
        spare -= most - minima[0]
    if spare > 0:
        fields.note(f"{of_job}: here each task begins with a node, all with {sum(minima)}", "spec", "minAvailable")
    return minima


def _role(fields: Fields, number: int, least: int, operators: dict[str, str]) -> Role:
    """`least`: the nodes with which it begins; `operators`: variables that plugins set."""
    path = ("spec", "tasks", number)
    nodes = fields.count(*path, "replicas", default=1, least=1)
    pod = read_pod(fields, (*path, "template"), operators=operators)
    name = fields.take(str, *path, "name", default=f"worker{number or ''}")
    others = fields.take(list, *path, "dependsOn", "name", default=[])
    return Role(name, nodes, least, pod, policies={"waitsFor": others} if others else {})
