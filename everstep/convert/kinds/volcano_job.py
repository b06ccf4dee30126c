"""Volcano's Job (batch.volcano.sh/v1alpha1)."""

from dataclasses import replace

from everstep.convert.field_reader import Fields
from everstep.convert.pods import read_pod, read_texts
from everstep.convert.source import Role, SourceJob

_COMPLETES = {"event": "TaskCompleted", "action": "CompleteJob"}


def read(fields: Fields) -> SourceJob:
    """Raises ConvertError."""
    count = fields.length("spec", "tasks")
    if not count:
        raise fields.wrong("missing: at least one task", "spec", "tasks")
    total = sum(fields.count("spec", "tasks", number, "replicas", default=1) for number in range(count))
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
    completing = [number for number in range(count) if _completes(fields, number)]
    policies = {"completePolicy": "Any"} if completing else {}
    spare = total - fields.count("spec", "minAvailable", default=total, most=total)
    roles = [_role(fields, number, spare if number == count - 1 else 0) for number in range(count)]
    if completing:
        ends = ["All" if number in completing else "None" for number in range(count)]
        roles = [
            replace(role, policies={**role.policies, "completePolicy": end})
            for role, end in zip(roles, ends, strict=True)
        ]
    return SourceJob(fields.take(str, "metadata", "name"), tuple(roles), arguments, policies)


def _completes(fields: Fields, number: int) -> bool:
    """Whether the job ends when this task does."""
    path = ("spec", "tasks", number, "policies")
    for place in range(fields.length(*path)):
        policy = (*path, place)
        if {name: fields.text_at(*policy, name) for name in fields.keys(*policy)} == _COMPLETES:
            fields.take(dict, *policy)
            return True
    return False


def _role(fields: Fields, number: int, spare: int) -> Role:
    """`spare`: how many of its nodes the job can do without."""
    path = ("spec", "tasks", number)
    nodes = fields.count(*path, "replicas", default=1, least=1)
    pod = read_pod(fields, (*path, "template"))
    name = fields.take(str, *path, "name", default=f"worker{number or ''}")
    least = fields.count(*path, "minAvailable", default=max(1, nodes - spare), most=nodes)
    others = fields.take(list, *path, "dependsOn", "name", default=[])
    return Role(name, nodes, least, pod, policies={"waitsFor": others} if others else {})
