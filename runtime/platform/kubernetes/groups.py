"""The PodGroups of a job whose scheduler needs them: created before its pods, deleted after them."""

from http import HTTPStatus

from everstep.runtime.platform.gang import Gang
from everstep.runtime.platform.kubernetes.api import Kind, KubeApi, KubeError
from everstep.runtime.platform.kubernetes.pods import Owner
from everstep.runtime.platform.kubernetes.scheduling import Scheduling, group_name, groups_of

KINDS: dict[Gang, Kind] = {
    Gang.VOLCANO: "podgroups.scheduling.volcano.sh", Gang.COSCHEDULING: "podgroups.scheduling.x-k8s.io",
}  # fmt: skip


async def ensure_groups(api: KubeApi, scheduling: Scheduling, job: str, owner: Owner) -> None:
    """Create the groups unless an earlier master did. Raises KubeError, also if the cluster has no such kind."""
    for manifest in groups_of(scheduling, job, owner):
        try:
            await api.ensure(KINDS[scheduling.gang], manifest)
        except KubeError as error:
            if error.status != HTTPStatus.NOT_FOUND:
                raise
            raise KubeError(
                f"--gang {scheduling.gang.value}: this cluster has no {KINDS[scheduling.gang]}; install that scheduler "
                "or use --gang none",
                error.status,
            ) from None


async def delete_groups(api: KubeApi, scheduling: Scheduling, job: str) -> None:
    """Delete the groups. Raises KubeError."""
    if scheduling.gang not in KINDS:
        return
    for name in (group_name(job), group_name(job, extra=True)):
        await _delete_group(api, KINDS[scheduling.gang], name)


async def _delete_group(api: KubeApi, kind: Kind, name: str) -> None:
    try:
        group = await api.retry(lambda: api.get(kind, name))
        await api.retry(lambda: api.delete(kind, name, group["metadata"]["uid"], 0))
    except KubeError as error:
        if error.status not in (HTTPStatus.NOT_FOUND, HTTPStatus.CONFLICT):
            raise
