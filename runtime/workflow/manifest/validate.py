"""What Argo's server refuses because it refers to nothing: templates, tasks, inputs, outputs, variables, cycles.

As Argo's validation does it: from the entrypoint and the exit handler downwards, each call with what its caller gives,
then every template that nobody called. Values that only a run can know are stand-ins.
"""

from collections import ChainMap
from collections.abc import Iterator, Mapping, MutableMapping
from itertools import count
from typing import Any, NamedTuple

from everstep.runtime.workflow.expressions import ExpressionError
from everstep.runtime.workflow.expressions.tags import reads, substitute, tags
from everstep.runtime.workflow.expressions.values import parameter_text
from everstep.runtime.workflow.manifest import dag_rules, fields
from everstep.runtime.workflow.manifest.depends import Ancestry, depends_of, needs
from everstep.runtime.workflow.manifest.fields import kind_of, listed
from everstep.runtime.workflow.manifest.library import Library, NotThereError
from everstep.runtime.workflow.manifest.references import always, items, looped, produced, unclosed, unknown
from everstep.runtime.workflow.manifest.schema import Problem, Where, nearest

GLOBALS = (
    "name", "namespace", "mainEntrypoint", "serviceAccountName", "uid", "creationTimestamp", "scheduledTime",
    "duration", "status", "failures", "priority", "parameters", "parameters.json", "labels", "labels.json",
    "annotations", "annotations.json",
)  # fmt: skip


class Call(NamedTuple):
    """A template as somebody uses it."""

    template: Mapping[str, Any]
    where: Where
    given: frozenset[str]
    """Names of the arguments: `parameters.x`, `artifacts.y`."""
    values: Mapping[str, str]
    """Values that are known before a run: the workflow's arguments, for the entrypoint."""
    home: Mapping[str, Mapping[str, Any]]
    """Where the template's own calls find templates: those of its WorkflowTemplate, or of the workflow."""
    inline: bool = False


def problems(workflow: Mapping[str, Any], library: Library) -> Iterator[Problem]:
    """Everything that Argo's server refuses, beyond unknown fields and wrong types."""
    spec = workflow.get("spec") or {}
    yield from fields.metadata_problems(workflow.get("metadata") or {})
    yield from _reference_problems(spec, library)
    merged = library.merged(spec)
    if merged is None:
        return
    yield from fields.argument_problems(merged.get("arguments") or {}, ("spec", "arguments"))
    yield from fields.templates_problems(listed(spec, "templates"), ("spec", "templates"))
    strategy = (spec.get("podGC") or {}).get("strategy")
    if strategy and strategy not in fields.POD_GC:
        yield Problem(("spec", "podGC", "strategy"), f"{strategy} is none of {', '.join(fields.POD_GC[1:])}")
    for name, hook in (merged.get("hooks") or {}).items():
        if name != "exit" and not hook.get("expression"):
            yield Problem(("spec", "hooks", name), "needs an expression; only the hook named exit has none")
    walk = _Walk(workflow, merged, library)
    walk.whole()
    yield from walk.problems


def _reference_problems(spec: Mapping[str, Any], library: Library) -> Iterator[Problem]:
    reference = spec.get("workflowTemplateRef")
    if reference:
        if spec.get("templates"):
            yield Problem(("spec", "templates"), "has no meaning with a workflowTemplateRef; remove one of them")
        if library.merged(spec) is None:
            yield Problem(("spec", "workflowTemplateRef"), f"there is no WorkflowTemplate {reference.get('name')!r}")


class _Walk:
    """One validation."""

    def __init__(self, workflow: Mapping[str, Any], spec: Mapping[str, Any], library: Library) -> None:
        self.problems: list[Problem] = []
        self._spec = spec
        self._library = library
        self._numbers = count(1)
        self._seen: set[tuple[int, frozenset[str]]] = set()
        self._templates = self._home = {str(one.get("name")): one for one in listed(spec, "templates")}
        self._places = {id(one): ("spec", "templates", i) for i, one in enumerate(listed(spec, "templates"))}
        self._globals = self._known(workflow)

    def _known(self, workflow: Mapping[str, Any]) -> dict[str, str]:
        known = {f"workflow.{name}": self._placeholder() for name in GLOBALS}
        metadata = workflow.get("metadata") or {}
        more = self._spec.get("workflowMetadata") or {}
        for kind in ("labels", "annotations"):
            names = {**(metadata.get(kind) or {}), **(more.get(kind) or {})}
            known |= {f"workflow.{kind}.{name}": str(value) for name, value in names.items()}
        for name in more.get("labelsFrom") or {}:
            known[f"workflow.labels.{name}"] = self._placeholder()
        for entry in listed(self._spec, "arguments", "parameters"):
            value = entry.get("value")
            known[f"workflow.parameters.{entry.get('name')}"] = (
                self._placeholder() if value is None else parameter_text(value)
            )
        return known

    def _placeholder(self) -> str:
        return f"placeholder-{next(self._numbers)}"

    def _say(self, where: Where, message: str) -> None:
        if not any(one.where == where and one.message == message for one in self.problems):
            self.problems.append(Problem(where, message))

    def whole(self) -> None:
        """Entrypoint, exit handler, hooks, then what nobody called."""
        given = self._spec.get("arguments") or {}
        values = {
            f"parameters.{p['name']}": parameter_text(p.get("value"))
            for p in listed(given, "parameters")
            if p.get("name")
        }
        entry = str(self._spec.get("entrypoint") or "")
        if not entry:
            self._say(("spec", "entrypoint"), "is required: the name of the template that begins")
        names = frozenset({*values, *(f"artifacts.{one.get('name')}" for one in listed(given, "artifacts"))})
        for field in ("entrypoint", "onExit"):
            name = str(self._spec.get(field) or "")
            if not name:
                continue
            if name not in self._templates:
                self._say(("spec", field), f"there is no template {name!r}{nearest(name, self._templates)}")
                continue
            template = self._templates[name]
            self._call(Call(template, self._place(template), names, values, self._templates))
        for template in self._templates.values():
            if not any(seen == id(template) for seen, _ in self._seen):
                every = frozenset(
                    f"{kind}.{entry.get('name')}"
                    for kind in ("parameters", "artifacts")
                    for entry in listed(template, "inputs", kind)
                )
                self._call(Call(template, self._place(template), every, {}, self._templates))

    def _place(self, template: Mapping[str, Any]) -> Where:
        return self._places.get(id(template), ())

    def _call(self, call: Call) -> None:
        """Check a template as it is called here; each way of calling once."""
        template, where = call.template, call.where
        if (id(template), call.given) in self._seen:
            return
        first = not any(seen == id(template) for seen, _ in self._seen)
        self._seen.add((id(template), call.given))
        kind = kind_of(template)
        if first:
            self.problems += fields.template_problems(template, where)
        if not kind:
            return
        scope = self._inputs(call)
        outer, self._home = self._home, call.home
        if kind == "steps":
            self._steps(template, where, scope)
        elif kind == "dag":
            self._dag(template, where, scope)
        else:
            self._leaf(template, where, scope, call.inline)
        self._home = outer

    def _inputs(self, call: Call) -> dict[str, str]:
        """The scope of a template's inputs; says what was not supplied."""
        scope = {"inputs.parameters": self._placeholder(), "inputs.artifacts": self._placeholder()}
        for entry in listed(call.template, "inputs", "parameters"):
            name = f"parameters.{entry.get('name')}"
            known = call.values.get(name)
            if name in call.given:
                value = self._placeholder() if known is None else known
            else:
                value = entry.get("value", entry.get("default"))
                if value is None and entry.get("valueFrom") is None:
                    self._say(call.where, f"inputs.parameters.{entry.get('name')} was not supplied")
            scope[f"inputs.{name}"] = self._placeholder() if value is None else parameter_text(value)
        for entry in listed(call.template, "inputs", "artifacts"):
            name = f"artifacts.{entry.get('name')}"
            places = ("raw", "s3", "http", "git", "gcs", "azure", "oss", "hdfs", "artifactory", "plugin")
            located = any(entry.get(place) for place in places)
            if name not in call.given and not located and not entry.get("optional"):
                self._say(call.where, f"inputs.artifacts.{entry.get('name')} was not supplied")
            scope[f"inputs.{name}"] = self._placeholder()
            if entry.get("path"):
                scope[f"inputs.{name}.path"] = str(entry["path"])
        return scope

    def _resolved(self, value: Any, where: Where, scope: MutableMapping[str, Any], inputs: Mapping[str, str]) -> None:
        """Every tag of a known kind names something in the scope."""
        try:
            value = substitute(substitute(value, self._globals), {**self._globals, **inputs})
        except ExpressionError as error:
            if "cannot finish" in str(error):
                self._say(where, f"a value has a control character; {error}")
            return
        known = ChainMap[str, Any](self._globals, dict[str, Any](), scope)
        for name in unknown(value, known):
            self._say(where, f"cannot resolve {{{{{name}}}}}{nearest(name, known)}")
        for text in unclosed(value):
            self._say(where, f"{{{{{text}: the tag is not closed")

    def _leaf(self, template: Mapping[str, Any], where: Where, inputs: dict[str, str], inline: bool) -> None:
        scope = dict(inputs) if inline else {**inputs, "pod.name": ""}
        body = {key: value for key, value in template.items() if key not in ("inputs", "metrics")}
        self._resolved(body, where, scope, inputs)
        own = {**scope, "inputs": ""}
        self._resolved(template.get("inputs"), (*where, "inputs"), own, inputs)

    def _tasks(self, entries: list[Any], where: Where) -> dict[str, Mapping[str, Any] | None]:
        """The template of each task or step, by its name; says what is wrong with the reference."""
        return {str(entry.get("name")): self._called(entry, (*where, i)) for i, entry in enumerate(entries)}

    def _called(self, entry: Mapping[str, Any], where: Where) -> Mapping[str, Any] | None:
        inline, reference, name = entry.get("inline"), entry.get("templateRef"), entry.get("template")
        if reference and name:
            self._say((*where, "template"), "has no meaning beside a templateRef; remove one of them")
            return None
        if reference:
            if not reference.get("template"):
                self._say((*where, "templateRef"), "needs a template: the name of one in the WorkflowTemplate")
                return None
            if "{{" in f"{reference.get('name')}{reference.get('template')}":
                return None
            try:
                return self._library.template(reference)
            except NotThereError as error:
                self._say((*where, "templateRef"), str(error))
                return None
        if inline:
            return inline
        if not name:
            self._say(where, "says not what to run: give it a template")
        elif name not in self._home:
            self._say((*where, "template"), f"there is no template {name!r}{nearest(str(name), self._home)}")
        return self._home.get(str(name))

    def _enter(self, entry: Mapping[str, Any], template: Mapping[str, Any] | None, where: Where) -> None:
        """Go on into what a task or step calls, with stand-ins for its arguments."""
        if template is None:
            return
        given = entry.get("arguments") or {}
        names = frozenset(
            f"{kind}.{one.get('name')}" for kind in ("parameters", "artifacts") for one in listed(given, kind)
        )
        inline = template is entry.get("inline")
        place = (*where, "inline") if inline else self._place(template) or where
        self._missing(template, names, where)
        home = self._library.templates(entry["templateRef"]) if entry.get("templateRef") else self._home
        self._call(Call(template, place, names | self._required(template), {}, home, inline))

    def _required(self, template: Mapping[str, Any]) -> frozenset[str]:
        """Inputs without which it cannot be called: their lack is told at the caller's place."""
        return frozenset(
            f"parameters.{entry.get('name')}"
            for entry in listed(template, "inputs", "parameters")
            if entry.get("value", entry.get("default")) is None and entry.get("valueFrom") is None
        )

    def _missing(self, template: Mapping[str, Any], names: frozenset[str], where: Where) -> None:
        for need in sorted(self._required(template) - names):
            self._say(where, f"templates.{template.get('name')}: inputs.{need} was not supplied")

    def _loop(self, entry: Mapping[str, Any], where: Where) -> dict[str, str]:
        """What `{{item}}` may be there; says what is wrong with the loop."""
        loops = [name for name in ("withItems", "withParam", "withSequence") if entry.get(name)]
        if len(loops) > 1:
            self._say(where, f"has {' and '.join(loops)}; keep one")
        sequence = entry.get("withSequence") or {}
        if sequence.get("count") is not None and sequence.get("end") is not None:
            self._say((*where, "withSequence"), "has both count and end; keep one")
        return items(entry)

    def _produced(self, prefix: str, template: Mapping[str, Any] | None, looped: bool) -> dict[str, str]:
        """What a task or step gives others to read; what it exports becomes the workflow's."""
        for what in ("parameters", "artifacts"):
            for entry in listed(template, "outputs", what):
                if entry.get("globalName"):
                    self._globals[f"workflow.outputs.{what}.{entry['globalName']}"] = self._placeholder()
        return produced(prefix, template, looped)

    def _hooks(self, entry: Mapping[str, Any], where: Where) -> None:
        for name, hook in (entry.get("hooks") or {}).items():
            if name != "exit" and not hook.get("expression") and where and where[-3:-2] == ("steps",):
                self._say((*where, "hooks", name), "needs an expression; only the hook named exit has none")

    def _steps(self, template: Mapping[str, Any], where: Where, inputs: dict[str, str]) -> None:
        scope: dict[str, str] = dict(inputs)
        names: set[str] = set()
        for index, group in enumerate(template.get("steps") or []):
            here = (*where, "steps", index)
            group = group or []
            self.problems += fields.task_names(group, here)
            for number, step in enumerate(group):
                if step.get("name") in names:
                    self._say((*here, number, "name"), f"{step['name']!r} is the name of an earlier step")
                names.add(str(step.get("name")))
            called = self._tasks(group, here)
            self._group(group, called, here, scope, inputs)
            for step in group:
                prefix = f"steps.{step.get('name')}"
                scope |= self._produced(prefix, called[str(step.get("name"))], looped(step)) | always(prefix)
        self._own_outputs(template, where, scope, inputs)

    def _group(self, group: list[Any], called: dict[str, Any], here: Where, scope: dict[str, str],
               inputs: dict[str, str]) -> None:  # fmt: skip
        for number, step in enumerate(group):
            place = (*here, number)
            self._hooks(step, place)
            items = self._loop(step, place)
            body = {key: value for key, value in step.items() if key not in ("hooks", "inline", "withItems")}
            known = ChainMap(items, scope)
            self._resolved(body, place, known, inputs)
            self._inline_tags(step, place, known, inputs)
            self.problems += fields.argument_problems(step.get("arguments") or {}, (*place, "arguments"))
            self._enter(step, called[str(step.get("name"))], place)

    def _inline_tags(self, entry: Mapping[str, Any], where: Where, scope: Mapping[str, Any],
                     inputs: Mapping[str, str]) -> None:  # fmt: skip
        """An inline template is part of its task: what it refers to must be known in the task too, or be its own."""
        inline = entry.get("inline")
        if inline and kind_of(inline) in fields.LEAVES:
            own = {f"inputs.parameters.{one.get('name')}": "" for one in listed(inline, "inputs", "parameters")}
            for one in listed(inline, "inputs", "artifacts"):
                own |= {f"inputs.artifacts.{one.get('name')}": "", f"inputs.artifacts.{one.get('name')}.path": ""}
            self._resolved(inline, (*where, "inline"), {**scope, **own}, inputs)

    def _dag(self, template: Mapping[str, Any], where: Where, inputs: dict[str, str]) -> None:
        tasks = [task for task in listed(template, "dag", "tasks") if isinstance(task, Mapping)]
        here = (*where, "dag", "tasks")
        if not tasks:
            self._say(here, "is empty")
            return
        self.problems += fields.task_names(tasks, here)
        self.problems += dag_rules.styles(tasks, here)
        called = self._tasks(tasks, here)
        by_name = {str(task.get("name")): task for task in tasks}
        waits = {str(t.get("name")): {name for name, _ in needs(depends_of(t, by_name))} for t in tasks}
        self.problems += dag_rules.named(tasks, by_name, here)
        if left := fields.in_circles({name: needed & by_name.keys() for name, needed in waits.items()}):
            self._say(here, f"{', '.join(sorted(left))} wait for each other")
            return
        base: dict[str, str] = dict(inputs)
        for task in tasks:
            base |= self._produced(f"tasks.{task.get('name')}", called[str(task.get("name"))], looped(task))
        ancestors = Ancestry(waits)
        for index, task in enumerate(tasks):
            self._task(task, called, (*here, index), base, ancestors, inputs)
        for target in str(substitute(template["dag"].get("target") or "", {**self._globals, **inputs})).split():
            if target not in by_name and "{{" not in target:
                self._say((*where, "dag", "target"), f"there is no task {target}{nearest(target, by_name)}")
        every = base | {key: "" for task in by_name for key in always(f"tasks.{task}")}
        self._own_outputs(template, where, every, inputs)

    def _task(self, task: Mapping[str, Any], called: Mapping[str, Any], where: Where, base: dict[str, str],
              ancestors: Ancestry, inputs: dict[str, str]) -> None:  # fmt: skip
        own = str(task.get("name"))
        more = self._loop(task, where)
        for other in {name.split(".")[1] for name in reads(task) if name.startswith("tasks.")}:
            if other in called and ancestors.has(own, other):
                more |= always(f"tasks.{other}")
        scope = ChainMap(more, base)
        body = {key: value for key, value in task.items() if key not in ("hooks", "inline", "withItems")}
        self._resolved(body, where, scope, inputs)
        self._inline_tags(task, where, scope, inputs)
        self.problems += fields.argument_problems(task.get("arguments") or {}, (*where, "arguments"))
        for kind in ("parameters", "artifacts"):
            for index, entry in enumerate(listed(task, "arguments", kind)):
                text = str(entry.get("value" if kind == "parameters" else "from") or "")
                found = [tag.strip() for tag in tags(text)]
                if len(found) == 1 and text.strip() == f"{{{{{tags(text)[0]}}}}}" and found[0].startswith("tasks."):
                    other = found[0].split(".")[1]
                    if other in called and not ancestors.has(own, other):
                        place = (*where, "arguments", kind, index)
                        self._say(place, f"reads {other}, which it does not depend on; add {other} to its depends")
        self._enter(task, called[str(task.get("name"))], where)

    def _own_outputs(self, template: Mapping[str, Any], where: Where, scope: Mapping[str, str],
                     inputs: Mapping[str, str]) -> None:  # fmt: skip
        self._resolved(template.get("outputs"), (*where, "outputs"), dict(scope), inputs)
