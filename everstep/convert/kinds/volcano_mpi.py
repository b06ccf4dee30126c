"""A Volcano Job's plugin `mpi`: which of its tasks is the launcher, and which are its hosts.

Volcano's "MPI Plugin User Guide": --master and --worker name the tasks, the plugins ssh and svc come with it, and
MPI_HOST of the master has the hosts.
"""

from collections.abc import Sequence
from dataclasses import replace

from everstep.convert.field_reader import Fields
from everstep.convert.mpi import with_launcher
from everstep.convert.pods import read_texts
from everstep.convert.source import Role
from everstep.runtime.job.spec import LAUNCHER

_PLUGIN = ("spec", "plugins", "mpi")
_HOSTS = (
    "beside frameworkType: horovod there are no VC_ variables, no /etc/volcano, and pods have no names of their own; "
    "nearest: MPI_HOST, or $EVERSTEP_DISCOVERY_SCRIPT"
)
IN_MASTER = {"MPI_HOST": "MPI_HOST"}
"""What its master finds besides, and what it is called here."""


def has_mpi(fields: Fields) -> bool:
    """Whether the job has the plugin."""
    return "mpi" in fields.keys("spec", "plugins")


def with_mpi(fields: Fields, roles: Sequence[Role]) -> tuple[Role, ...]:
    """The roles, of which the master's is the launcher's, and comes first. Raises ConvertError."""
    parts = (word.lstrip("-").partition("=") for word in read_texts(fields, _PLUGIN))
    flags = {name: value for name, _, value in parts}
    for name in ("ssh", "svc", "env"):
        read_texts(fields, ("spec", "plugins", name))
    if names := [name for name in ("svc", "env") if fields.has("spec", "plugins", name)]:
        fields.note(_HOSTS, "spec", "plugins", names[0])
    places = {role.name: number for number, role in enumerate(roles)}
    master, worker = flags.get("master", "master"), flags.get("worker", "worker")
    for name in (master, worker):
        if name not in places:
            raise fields.wrong(f"no task is called {name}; name the tasks by --master= and --worker=", *_PLUGIN)
    if master == worker:
        raise fields.wrong(f"{master} cannot be both master and worker; name two tasks", *_PLUGIN)
    where = ("spec", "tasks", places[master]), ("spec", "tasks", places[worker])
    if roles[places[master]].nodes != 1:
        raise fields.wrong("there is one master; leave it at 1", *where[0], "replicas")
    first, hosts = with_launcher(fields, roles[places[master]], roles[places[worker]], where, _PLUGIN)
    others = [role for role in roles if role.name not in (master, worker)]
    return tuple(_awaiting(role, master) for role in (first, hosts, *others))


def _awaiting(role: Role, master: str) -> Role:
    """A role that waits for the master waits for the launcher."""
    awaited = role.policies.get("waitsFor", [])
    waits = {"waitsFor": [LAUNCHER if name == master else name for name in awaited]} if awaited else {}
    return replace(role, policies={**role.policies, **waits})
