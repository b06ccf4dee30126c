"""What steps say about themselves, as words and tables for people; what the run achieved. Pure."""

import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any

from everstep.runtime.report import charts

_LONG = 80
"""Characters of a value that does not stand beside its name any more."""


@dataclass(frozen=True)
class FactTable:
    """Several things of one kind, such as the nodes of a check."""

    title: str
    columns: tuple[str, ...]
    rows: tuple[tuple[str, ...], ...]


@dataclass(frozen=True)
class StepFacts:
    """What a step says about itself: its line, short facts, longer texts, and tables."""

    name: str
    summary: str
    short: tuple[tuple[str, str], ...]
    long: tuple[tuple[str, str], ...]
    tables: tuple[FactTable, ...]


def step_facts(name: str, summary: Mapping[str, Any]) -> StepFacts:
    """Facts in the step's order; a text of several lines or more than 80 characters is long."""
    facts = summary.get("facts")
    items, tables = list[tuple[str, str]](), list[FactTable]()
    for key, value in _flat(facts if isinstance(facts, dict) else {}):
        if isinstance(value, list) and value and all(isinstance(row, dict) for row in value):
            columns = tuple(dict.fromkeys(column for row in value for column in row))
            rows = tuple(tuple(words(row.get(column, "")) for column in columns) for row in value)
            tables.append(FactTable(key, tuple(_name(column) for column in columns), rows))
        else:
            items.append((key, words(value)))
    return StepFacts(
        name=name,
        summary=str(summary.get("summary") or ""),
        short=tuple(item for item in items if not _is_long(item[1])),
        long=tuple(item for item in items if _is_long(item[1])),
        tables=tuple(tables),
    )


def outcome(steps: Mapping[str, Mapping[str, Any]]) -> list[tuple[str, str]]:
    """(name, value) of what the run achieved: perplexities, and what scripts named as results."""
    outcome: dict[str, Any] = {}
    for facts in _facts_of(steps):
        if isinstance(results := facts.get("results"), dict):
            outcome |= results
        if "perplexity" in facts:
            outcome["perplexity"] = facts["perplexity"]
            if "untrained_perplexity" in facts:
                outcome["perplexity before training"] = facts["untrained_perplexity"]
    return [(_name(key), text) for key, value in outcome.items() if not _is_long(text := words(value))]


def uses(steps: Mapping[str, Mapping[str, Any]]) -> list[tuple[str, str]]:
    """(purpose, place or command) of what the run left for its user."""
    model = checkpoint = ""
    is_exported = False
    for facts in _facts_of(steps):
        checkpoint = str(facts.get("checkpoint") or checkpoint)
        if "perplexity" in facts and facts.get("model"):
            model, is_exported = str(facts["model"]), True
        elif isinstance(results := facts.get("results"), dict) and results.get("model"):
            model = str(results["model"])
    parts = [("model", model)] if model else []
    if is_exported:
        parts += [
            ("load it", f"AutoModelForCausalLM.from_pretrained({model!r})"),
            ("train it further", f"python pipelines/llama_finetune.py --model {model}"),
        ]
    if checkpoint:
        parts.append(("weights of the checkpoint", f"everstep checkpoint export {checkpoint} model.safetensors"))
    return parts


_SECRET = re.compile(r"(?i)secret|token$|password|credential|(access|api|private).?key")


def parameters(workflow: Mapping[str, Any]) -> list[tuple[str, str]]:
    """(name, value) of the run's parameters; a secret's value is left out."""
    spec = workflow.get("spec")
    arguments = spec.get("arguments") if isinstance(spec, dict) else None
    entries = arguments.get("parameters") if isinstance(arguments, dict) else None
    parameter_entries = [entry for entry in entries or [] if isinstance(entry, dict)]
    return [
        _setting_row(str(entry.get("name")), entry.get("value", entry.get("default", "")))
        for entry in parameter_entries
    ]


def settings(steps: Mapping[str, Mapping[str, Any]]) -> list[tuple[str, list[tuple[str, str]]]]:
    """(step, its settings) as they were when it ran."""
    settings_by_step = ((name, step.get("settings")) for name, step in steps.items())
    return [
        (name, [_setting_row(key, value) for key, value in some.items()])
        for name, some in settings_by_step
        if isinstance(some, dict)
    ]


def environments(steps: Mapping[str, Mapping[str, Any]]) -> FactTable | None:
    """Where each step ran; None if no step says so."""
    rows = [(name, place) for name, step in steps.items() if isinstance(place := step.get("environment"), dict)]
    if not rows:
        return None
    columns = tuple(dict.fromkeys(key for _, place in rows for key in place))
    body = tuple((name, *(words(place.get(column, "")) for column in columns)) for name, place in rows)
    return FactTable("environment", ("step", *map(_name, columns)), body)


def _setting_row(name: str, value: object) -> tuple[str, str]:
    return name, "(not shown)" if _SECRET.search(name) and value else words(value)


def words(value: object) -> str:
    """A value as text. Lists have commas, lists of lists semicolons; nothing is `none`."""
    if isinstance(value, str):
        return value
    if isinstance(value, bool):
        return "yes" if value else "no"
    if isinstance(value, int):
        return f"{value:,}".replace(",", " ")
    if isinstance(value, float):
        return f"{value:.4g}" if abs(value) < 1e4 else charts.short(value)
    if isinstance(value, dict):
        return ", ".join(f"{_name(str(key))} {words(inner)}" for key, inner in value.items()) or "none"
    if isinstance(value, list):
        joint = "; " if any(isinstance(item, list | dict) for item in value) else ", "
        return joint.join(map(words, value)) or "none"
    return "none"


def _facts_of(steps: Mapping[str, Mapping[str, Any]]) -> Iterator[Mapping[str, Any]]:
    return (facts for step in steps.values() if isinstance(facts := step.get("facts"), dict))


def _flat(facts: Mapping[str, Any], above: str = "") -> Iterator[tuple[str, Any]]:
    """Facts of facts stand beside the others: `train: documents`."""
    for key, value in facts.items():
        name = f"{above}{_name(str(key))}"
        if isinstance(value, dict) and value:
            yield from _flat(value, f"{name}: ")
        else:
            yield name, value


def _name(key: str) -> str:
    return key.replace("_", " ")


def _is_long(text: str) -> bool:
    return len(text) > _LONG or "\n" in text
