"""Names of a job and its roles, as Kubernetes and a job spec take them."""

import re
from collections.abc import Mapping
from dataclasses import replace

from everstep.convert.field_reader import Fields
from everstep.convert.source import Role, SourceJob

_NAME = re.compile(r"[a-z0-9]([a-z0-9.-]{0,251}[a-z0-9])?")
"""A DNS subdomain."""
_LONGEST_ROLE = 31
_AWAITED = "waitsFor"


def read_name(fields: Fields) -> str:
    """The job's name, or the beginning of the one that a cluster would give it. Raises ConvertError."""
    given = "name" if fields.has("metadata", "name") else "generateName"
    beginning = fields.take(str, "metadata", "generateName", default="").rstrip("-.")
    name = fields.take(str, "metadata", "name", default=beginning)
    if not name:
        raise fields.wrong("missing", "metadata", "name")
    if not _NAME.fullmatch(name):
        raise fields.wrong(
            f"{name!r} is not a name for Kubernetes: it takes small letters, digits, - and .", "metadata", given
        )
    return name


def with_role_names(job: SourceJob, file: str, notes: list[str]) -> SourceJob:
    """The job whose roles have names that a job spec takes: letters and digits. Adds those that are others now to
    `notes`."""
    names = {role.name: role_name(role.name) for role in job.roles}
    notes += [f"{file}: {name}: this role is called {now} here" for name, now in names.items() if name != now]
    return replace(job, roles=tuple(_with_name(role, names) for role in job.roles))


def role_name(name: str) -> str:
    """The same if nothing of it is left: the job spec's reader says what is wrong."""
    return re.sub(r"[^a-z0-9]", "", name.lower()).lstrip("0123456789")[:_LONGEST_ROLE] or name


def _with_name(role: Role, names: Mapping[str, str]) -> Role:
    policies = dict(role.policies)
    if _AWAITED in policies:
        policies[_AWAITED] = [names.get(str(other), other) for other in policies[_AWAITED]]
    return replace(role, name=names[role.name], policies=policies)
