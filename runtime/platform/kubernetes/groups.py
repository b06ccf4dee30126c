"""The PodGroup of a job whose scheduler wants one: made before its pods, deleted after them."""

from runtime.platform.kubernetes.api import Kind, KubeApi, KubeError
from runtime.platform.kubernetes.pods import Owner, secret_name
from runtime.platform.kubernetes.scheduling import Gang, Scheduling, group_of

KINDS: dict[Gang, Kind] = {
    Gang.VOLCANO: "podgroups.scheduling.volcano.sh", Gang.COSCHEDULING: "podgroups.scheduling.x-k8s.io",
}  # fmt: skip
EXISTS, NOT_FOUND = 409, 404


async def group_made(api: KubeApi, scheduling: Scheduling, job: str, owner: Owner) -> None:
    """The PodGroup is there, made now or by an earlier master. Raises KubeError, also where the cluster knows none."""
    manifest = group_of(scheduling, job, owner)
    if manifest is None:
        return
    try:
        await api.patiently(lambda: api.create(KINDS[scheduling.gang], manifest))
    except KubeError as error:
        if error.status == NOT_FOUND:
            raise KubeError(
                f"--gang {scheduling.gang.value}: this cluster has no {KINDS[scheduling.gang]}; install that scheduler "
                "or use --gang none",
                NOT_FOUND,
            ) from None
        if error.status != EXISTS:
            raise


async def group_deleted(api: KubeApi, scheduling: Scheduling, job: str) -> None:
    """It is gone. Raises KubeError."""
    if scheduling.gang not in KINDS:
        return
    kind, name = KINDS[scheduling.gang], secret_name(job)
    try:
        made = await api.patiently(lambda: api.get(kind, name))
        await api.patiently(lambda: api.delete(kind, name, made["metadata"]["uid"], 0))
    except KubeError as error:
        if error.status not in (NOT_FOUND, EXISTS):
            raise
