"""What Argo's server refuses of a CronWorkflow beside its workflowSpec: its fields, schedules, time zone and name.

Schedules as robfig/cron's standard parser reads them ("CRON Expression Format"): five fields, or a descriptor.
"""

import re
from collections.abc import Iterator, Mapping
from typing import Any
from zoneinfo import ZoneInfo, ZoneInfoNotFoundError

from everstep.runtime.workflow.expressions import go_duration
from everstep.runtime.workflow.manifest import schema
from everstep.runtime.workflow.manifest.fields import list_at, mapping_at
from everstep.runtime.workflow.manifest.schema import Problem

LONGEST_NAME = 52
POLICIES = ("Allow", "Forbid", "Replace")
DESCRIPTORS = ("@yearly", "@annually", "@monthly", "@weekly", "@daily", "@midnight", "@hourly")
_MONTHS = ("jan", "feb", "mar", "apr", "may", "jun", "jul", "aug", "sep", "oct", "nov", "dec")
_DAYS = ("sun", "mon", "tue", "wed", "thu", "fri", "sat")
_FIELDS: Mapping[str, tuple[int, int, Mapping[str, int]]] = {
    "minute": (0, 59, {}),
    "hour": (0, 23, {}),
    "day of month": (1, 31, {}),
    "month": (1, 12, {name: number for number, name in enumerate(_MONTHS, 1)}),
    "day of week": (0, 6, {name: number for number, name in enumerate(_DAYS)}),
}
"""Lowest and highest number, and names for numbers."""
_RANGE = re.compile(r"(?:(?P<any>[*?])|(?P<first>\w+)(?:-(?P<last>\w+))?)(?:/(?P<step>\d+))?")


def problems(source: Mapping[str, Any]) -> Iterator[Problem]:
    """All of them, but for those of its workflowSpec."""
    wrong = list(schema.problems(source, "CronManifest"))
    yield from wrong
    if wrong:
        return
    spec, name = mapping_at(source, "spec"), str(mapping_at(source, "metadata").get("name") or "")
    if len(name) > LONGEST_NAME:
        yield Problem(("metadata", "name"), f"has {len(name)} characters; at most {LONGEST_NAME} are allowed")
    policy = spec.get("concurrencyPolicy")
    if policy and policy not in POLICIES:
        yield Problem(("spec", "concurrencyPolicy"), f"{policy} is not one of {', '.join(POLICIES)}")
    if zone := spec.get("timezone"):
        try:
            ZoneInfo(zone)
        except (ZoneInfoNotFoundError, ValueError, OSError):
            yield Problem(("spec", "timezone"), f"there is no time zone {zone!r}; write one like Europe/Berlin")
    schedules = list_at(spec, "schedules")
    if not schedules:
        yield Problem(("spec", "schedules"), "is empty; give it a schedule such as 0 3 * * *")
    for index, text in enumerate(schedules):
        if mistake := _schedule_mistake(text):
            yield Problem(("spec", "schedules", index), f"{text!r} {mistake}")


def _schedule_mistake(text: str) -> str:
    """What is wrong with a schedule; empty if nothing is."""
    words = text.split()
    if words and words[0].startswith(("TZ=", "CRON_TZ=")):
        words = words[1:]
    if words[:1] == ["@every"]:
        try:
            go_duration.parse_duration(" ".join(words[1:]))
        except ValueError as error:
            return f"has no duration after @every: {error}"
        return ""
    if words and words[0].startswith("@"):
        is_descriptor = words[0] in DESCRIPTORS and len(words) == 1
        return "" if is_descriptor else f"is not one of {', '.join(DESCRIPTORS)}, @every 1h30m"
    if len(words) != len(_FIELDS):
        return f"has {len(words)} fields; write five: {', '.join(_FIELDS)}"
    for (name, bounds), word in zip(_FIELDS.items(), words, strict=True):
        if not all(_is_range(part, *bounds) for part in word.split(",")):
            return f"has a wrong {name}, {word}; it is from {bounds[0]} to {bounds[1]}"
    return ""


def _is_range(text: str, least: int, most: int, names: Mapping[str, int]) -> bool:
    match = _RANGE.fullmatch(text)
    if match is None or (match["step"] is not None and int(match["step"]) == 0):
        return False
    if match["any"]:
        return True
    ends = [
        names.get(end.lower(), int(end) if end.isdecimal() else -1) for end in (match["first"], match["last"]) if end
    ]
    return all(least <= end <= most for end in ends) and ends == sorted(ends)
