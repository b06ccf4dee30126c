"""An Argo Workflow manifest as data: checked field by field (`schema`), as a whole (`validate`), and as pods.

What this executor does not do is refused by name: `schema` marks it.
"""

import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, replace
from typing import Any

from everstep.runtime.workflow.expressions import ExpressionError
from everstep.runtime.workflow.expressions.bounds import use_meter
from everstep.runtime.workflow.expressions.tags import names_read
from everstep.runtime.workflow.manifest import cycles, environment, pod_rules, schema, validate, volume_sources
from everstep.runtime.workflow.manifest.fields import list_at, mapping_at
from everstep.runtime.workflow.manifest.library import Library, missing_secrets, with_defaults
from everstep.runtime.workflow.manifest.schema import Problem
from everstep.runtime.workflow.manifest.yaml_source import ReadError, read_text

GROUP, KIND = "argoproj.io/", "Workflow"
NAME = re.compile(r"[a-z0-9]([-a-z0-9.]*[a-z0-9])?")


NO_LIBRARY = Library()


class ManifestError(ValueError):
    """The manifest cannot be run: one line with the path and the mend. `problems` has all problems."""

    def __init__(self, message: str, problems: tuple[Problem, ...] = ()) -> None:
        super().__init__(message)
        self.problems = problems


@dataclass(frozen=True)
class Manifest:
    """A checked workflow."""

    raw: Mapping[str, Any]
    """The manifest as given."""
    spec: Mapping[str, Any]
    """The spec with its workflowTemplateRef merged in."""
    library: Library
    templates: Mapping[str, Mapping[str, Any]]

    def with_parameters(self, values: Mapping[str, str]) -> "Manifest":
        """The manifest with other values of workflow parameters."""
        spec = with_arguments({"spec": self.spec}, values)["spec"]
        return replace(self, raw=with_arguments(self.raw, values), spec=spec) if values else self

    @property
    def name(self) -> str:
        """metadata.name; empty when a name is to be generated."""
        return str((self.raw.get("metadata") or {}).get("name") or "")

    @property
    def generate_name(self) -> str:
        """metadata.generateName."""
        return str((self.raw.get("metadata") or {}).get("generateName") or "")

    @property
    def entrypoint(self) -> str:
        """Name of the template with which the workflow begins."""
        return str(self.spec.get("entrypoint") or "")

    def template(self, task: Mapping[str, Any], home: str = "") -> tuple[Mapping[str, Any], str]:
        """(the template that a task, step or hook calls, the home in which that template finds others).

        A home is the WorkflowTemplate in which a template stands; the workflow's own is empty. Raises ExpressionError
        in Argo's words.
        """
        reference = task.get("templateRef")
        if reference:
            home = f"{'cluster/' if reference.get('clusterScope') else ''}{reference.get('name')}"
            home_templates = self._home_templates(home)
            if str(reference.get("template")) not in home_templates:
                name = f"{reference.get('name')}.{reference.get('template')}"
                raise ExpressionError(f"template reference {name} not found")
            template = home_templates[str(reference.get("template"))]
        elif task.get("inline"):
            template = task["inline"]
        else:
            home_templates = self._home_templates(home)
            if str(task.get("template")) not in home_templates:
                raise ExpressionError(f"template {task.get('template')} not found")
            template = home_templates[str(task.get("template"))]
        defaults = self.spec.get("templateDefaults")
        return (with_defaults(template, defaults) if defaults else template), home

    def _home_templates(self, home: str) -> Mapping[str, Mapping[str, Any]]:
        """Templates by name."""
        if not home:
            return self.templates
        cluster, _, name = home.rpartition("/")
        return self.library.templates({"name": name, "clusterScope": bool(cluster)})

    def template_name(self, task: Mapping[str, Any]) -> str:
        """The name of the template that a task calls; empty where it has none."""
        return str(task.get("template") or "")


def parse(source: Mapping[str, Any] | str, library: Library = NO_LIBRARY) -> Manifest:
    """The manifest, with what else it refers to. Raises ManifestError: inconsistent, or beyond this executor."""
    if isinstance(source, str):
        try:
            source = read_text(source)[0].value
        except ReadError as error:
            raise ManifestError(str(error)) from None
    with use_meter():
        all_problems = tuple(problems(source, library))
    if all_problems:
        raise ManifestError(all_problems[0].text, all_problems)
    assert isinstance(source, Mapping)
    spec = library.merged_spec(source.get("spec") or {}) or {}
    return Manifest(source, spec, library, {str(template["name"]): template for template in list_at(spec, "templates")})


def problems(source: Any, library: Library = NO_LIBRARY) -> Iterator[Problem]:
    """All problems that keep it from running, in the order kind, fields and types, references, pods."""
    if not isinstance(source, Mapping):
        yield Problem((), "the manifest is not a mapping")
        return
    version, kind = str(source.get("apiVersion") or ""), source.get("kind")
    if not version.startswith(GROUP) or kind != KIND:
        yield Problem(("kind",), f"{version} {kind}: only {GROUP}v1alpha1 {KIND} can run")
        return
    all_problems = list(schema.problems(source))
    for place, template_spec in library.referred_templates(source).items():
        all_problems += [problem._replace(of=place) for problem in schema.problems(template_spec)]
    beyond = [problem for problem in all_problems if problem.only == "here"]
    mistakes = [problem for problem in all_problems if problem not in beyond] or list(
        validate.problems(source, library)
    )
    yield from [*mistakes, *beyond]
    if all(mistake.only for mistake in mistakes):
        spec = source.get("spec") or {}
        yield from cycles.problems(library.merged_spec(spec) or spec, library)
        if spec.get("parallelism") == 0:
            yield Problem(("spec", "parallelism"), "0 lets nothing start; Argo would wait forever")
        yield from _mutex_problems(spec, ("spec",))
        yield from pod_rules.volume_problems(spec, ("spec",))
        yield from volume_sources.problems(list_at(spec, "volumes"), library, ("spec", "volumes"))
        for index, template in enumerate(list_at(spec, "templates")):
            yield from _pod_problems(template, spec, library, ("spec", "templates", index))
        for place, template_spec in library.referred_templates(source).items():
            below = template_spec.get("spec") or {}
            for index, template in enumerate(list_at(below, "templates")):
                below_problems = _pod_problems(template, below, library, ("spec", "templates", index))
                yield from (problem._replace(of=place) for problem in below_problems)


def _mutex_problems(holder: Mapping[str, Any], where: schema.Where) -> Iterator[Problem]:
    for index, mutex in enumerate(list_at(holder, "synchronization", "mutexes")):
        if not mutex.get("name"):
            yield Problem((*where, "synchronization", "mutexes", index), "needs a name")


def _containers(template: Mapping[str, Any], where: schema.Where) -> Iterator[tuple[schema.Where, Mapping[str, Any]]]:
    for kind in ("container", "script"):
        if template.get(kind):
            yield (*where, kind), template[kind]
    for fields in (("initContainers",), ("sidecars",), ("containerSet", "containers")):
        for index, container in enumerate(list_at(template, *fields)):
            yield (*where, *fields, index), container


def _pod_problems(
    template: Mapping[str, Any], spec: Mapping[str, Any], library: Library, where: schema.Where
) -> Iterator[Problem]:
    """Problems of the pod of a template, and of inline templates in it."""
    yield from pod_rules.problems(template, spec, where)
    defaults = spec.get("templateDefaults") or {}
    for place, container in _containers(template, where):
        yield from environment.problems(container, library, place)
        own = (defaults.get(str(place[-1])) or {}).get("command")
        image = str(container.get("image") or "")
        if not container.get("command") and not own and not library.entry_point(image) and "{{" not in image:
            message = f"is required; or set what its image runs: --image {image}=COMMAND"
            yield Problem((*place, "command"), message, only="here")
    for side in ("inputs", "outputs"):
        for index, entry in enumerate(list_at(template, side, "artifacts")):
            yield from missing_secrets(entry, library, (*where, side, "artifacts", index))
            if entry.get("git") and not entry["git"].get("repo"):
                yield Problem((*where, side, "artifacts", index, "git"), "needs a repo")
    if template.get("data") and (template["data"].get("source") or {}).get("artifactPaths") is None:
        yield Problem((*where, "data", "source"), "needs artifactPaths: an s3 whose paths are listed")
    if template.get("http"):
        yield from pod_rules.http_problems(template["http"], library, (*where, "http"))
    if template.get("memoize") and not (template["memoize"].get("cache") or {}).get("configMap"):
        yield Problem((*where, "memoize"), "needs a cache with a configMap")
    yield from _mutex_problems(template, where)
    yield from volume_sources.problems(list_at(template, "volumes"), library, (*where, "volumes"))
    for index, task in enumerate(list_at(template, "dag", "tasks")):
        if task.get("inline"):
            yield from _pod_problems(task["inline"], spec, library, (*where, "dag", "tasks", index, "inline"))
    for number, group in enumerate(list_at(template, "steps")):
        for index, step in enumerate(group or []):
            if step.get("inline"):
                yield from _pod_problems(step["inline"], spec, library, (*where, "steps", number, index, "inline"))


def parameter_names(source: Any, library: Library) -> set[str]:
    """Names of the workflow's parameters: those that it declares or reads; with an empty one if it reads all."""
    spec = mapping_at(source, "spec", "workflowSpec") or mapping_at(source, "spec")
    spec = (library.merged_spec(spec) if isinstance(spec.get("workflowTemplateRef") or {}, Mapping) else None) or spec
    prefix = "workflow.parameters."
    read = {name.removeprefix(prefix) for name in names_read(spec) if name.startswith(prefix)}
    declared_names = {
        str(parameter.get("name"))
        for parameter in list_at(spec, "arguments", "parameters")
        if isinstance(parameter, Mapping)
    }
    return declared_names | ({""} if "json" in read else read)


def with_arguments(source: Mapping[str, Any], values: Mapping[str, str], entrypoint: str = "") -> dict[str, Any]:
    """The workflow with parameters and an entrypoint from the command line."""
    source_spec = source.get("spec") or {}
    own = source_spec.get("arguments") or {} if isinstance(source_spec, Mapping) else None
    declared_parameters = (own.get("parameters") or []) if isinstance(own, Mapping) else None
    if not isinstance(declared_parameters, list) or not all(
        isinstance(parameter, Mapping) for parameter in declared_parameters
    ):
        return dict(source)  # It cannot be run; `parse` reports it.
    spec = dict(source_spec)
    if entrypoint:
        spec["entrypoint"] = entrypoint
    if values:
        arguments = dict(own or {})
        values_left = dict(values)
        parameters = []
        for entry in arguments.get("parameters") or []:
            if isinstance(entry.get("name"), str) and entry["name"] in values_left:
                entry = {key: value for key, value in entry.items() if key != "valueFrom"}
                entry["value"] = values_left.pop(entry["name"])
            parameters.append(entry)
        parameters += [{"name": name, "value": value} for name, value in values_left.items()]
        spec["arguments"] = {**arguments, "parameters": parameters}
    return {**source, "spec": spec}
