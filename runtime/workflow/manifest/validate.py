"""What Argo's server refuses because a reference leads nowhere: templates, tasks, inputs, outputs, variables, cycles.

As Argo's validation does it: from the entrypoint and the exit handler downwards, each call with what its caller gives,
then every template that nothing calls. Values that only a run can know are stand-ins.
"""

from collections import ChainMap
from collections.abc import Iterable, Iterator, Mapping, MutableMapping
from itertools import count
from typing import Any, NamedTuple

from everstep.runtime.workflow.expressions import ExpressionError
from everstep.runtime.workflow.expressions.tags import names_read, substitute
from everstep.runtime.workflow.expressions.values import parameter_text
from everstep.runtime.workflow.manifest import dag_rules, fields
from everstep.runtime.workflow.manifest.depends import Ancestry, depends_of, needs
from everstep.runtime.workflow.manifest.fields import kind_of, list_at, mapping_at
from everstep.runtime.workflow.manifest.library import WORKFLOW_TEMPLATES, Library, MissingObjectError
from everstep.runtime.workflow.manifest.references import (
    global_scope,
    has_items,
    item_scope,
    output_scope,
    status_scope,
    unclosed_tags,
    unknown_tags,
)
from everstep.runtime.workflow.manifest.schema import Problem, Where, nearest_hint

NO_ENTRYPOINT = "is required: the name of the template that begins"


class TemplateUse(NamedTuple):
    """A template as one caller uses it."""

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
    spec_merged = library.merged_spec(spec)
    if spec_merged is None:
        return
    yield from fields.argument_problems(spec_merged.get("arguments") or {}, ("spec", "arguments"))
    yield from fields.template_name_problems(list_at(spec, "templates"), ("spec", "templates"))
    strategy = (spec.get("podGC") or {}).get("strategy")
    if strategy and strategy not in fields.POD_GC:
        yield Problem(("spec", "podGC", "strategy"), f"{strategy} is not one of {', '.join(fields.POD_GC[1:])}")
    yield from fields.hook_problems(spec_merged, ("spec",))
    for index, plugin in enumerate(list_at(spec_merged, "executorPlugins")):
        if not mapping_at(plugin, "metadata").get("name"):
            yield Problem(("spec", "executorPlugins", index, "metadata"), "needs a name")
    walk = _Walk(workflow, spec_merged, library)
    walk.check()
    yield from walk.problems


def _reference_problems(spec: Mapping[str, Any], library: Library) -> Iterator[Problem]:
    reference = spec.get("workflowTemplateRef")
    if reference:
        if spec.get("templates"):
            yield Problem(("spec", "templates"), "has no effect with a workflowTemplateRef; remove one of them")
        if library.merged_spec(spec) is None:
            kind = WORKFLOW_TEMPLATES[bool(reference.get("clusterScope"))]
            message = f"there is no {kind} {reference.get('name')!r}; provide it: --with FILE"
            yield Problem(("spec", "workflowTemplateRef"), message, only="here")


class _Walk:
    """One validation."""

    def __init__(self, workflow: Mapping[str, Any], spec: Mapping[str, Any], library: Library) -> None:
        self.problems: list[Problem] = []
        self._spec = spec
        self._library = library
        self._numbers = count(1)
        self._seen: set[tuple[int, frozenset[str]]] = set()
        self._templates = self._home = {str(template.get("name")): template for template in list_at(spec, "templates")}
        self._places = {id(template): ("spec", "templates", i) for i, template in enumerate(list_at(spec, "templates"))}
        self._globals = global_scope(workflow, spec, self._placeholder)

    def _placeholder(self) -> str:
        return f"placeholder-{next(self._numbers)}"

    def _report(self, where: Where, message: str) -> None:
        self._add([Problem(where, message)])

    def _add(self, found: Iterable[Problem]) -> None:
        """Add what was not found before: a template is checked again for each other way to call it."""
        self.problems += [problem for problem in dict.fromkeys(found) if problem not in self.problems]

    def check(self) -> None:
        """Check the entrypoint, the exit handler, then every template that nothing called."""
        arguments = self._spec.get("arguments") or {}
        values = {
            f"parameters.{p['name']}": parameter_text(p.get("value"))
            for p in list_at(arguments, "parameters")
            if p.get("name")
        }
        entry = str(self._spec.get("entrypoint") or "")
        if not entry:
            self._report(("spec", "entrypoint"), NO_ENTRYPOINT)
        names = frozenset(
            {*values, *(f"artifacts.{artifact.get('name')}" for artifact in list_at(arguments, "artifacts"))}
        )
        for field in ("entrypoint", "onExit"):
            name = str(self._spec.get(field) or "")
            if not name:
                continue
            if name not in self._templates:
                self._report(("spec", field), f"there is no template {name!r}{nearest_hint(name, self._templates)}")
                continue
            template = self._templates[name]
            self._check_template(TemplateUse(template, self._template_path(template), names, values, self._templates))
        for template in self._templates.values():
            if not any(checked_id == id(template) for checked_id, _ in self._seen):
                every = frozenset(
                    f"{kind}.{entry.get('name')}"
                    for kind in ("parameters", "artifacts")
                    for entry in list_at(template, "inputs", kind)
                )
                self._check_template(TemplateUse(template, self._template_path(template), every, {}, self._templates))

    def _template_path(self, template: Mapping[str, Any]) -> Where:
        return self._places.get(id(template), ())

    def _check_template(self, call: TemplateUse) -> None:
        """Check a template as it is called here; each way of calling once."""
        template, where = call.template, call.where
        if (id(template), call.given) in self._seen:
            return
        first = not any(checked_id == id(template) for checked_id, _ in self._seen)
        self._seen.add((id(template), call.given))
        kind = kind_of(template)
        if first:
            self._add(fields.template_problems(template, where))
        if not kind:
            return
        scope = self._input_scope(call)
        outer, self._home = self._home, call.home
        if kind == "steps":
            self._check_steps(template, where, scope)
        elif kind == "dag":
            self._check_dag(template, where, scope)
        else:
            self._check_leaf(template, where, scope, call.inline)
        self._home = outer

    def _input_scope(self, call: TemplateUse) -> dict[str, str]:
        """The scope of a template's inputs; says what was not supplied."""
        scope = {"inputs.parameters": self._placeholder(), "inputs.artifacts": self._placeholder()}
        for entry in list_at(call.template, "inputs", "parameters"):
            name = f"parameters.{entry.get('name')}"
            value_at_call = call.values.get(name)
            if name in call.given:
                value = self._placeholder() if value_at_call is None else value_at_call
            else:
                value = entry.get("value", entry.get("default"))
                if value is None and entry.get("valueFrom") is None:
                    self._report(call.where, f"inputs.parameters.{entry.get('name')} was not supplied")
            scope[f"inputs.{name}"] = self._placeholder() if value is None else parameter_text(value)
        for entry in list_at(call.template, "inputs", "artifacts"):
            name = f"artifacts.{entry.get('name')}"
            if name not in call.given and not fields.has_location(entry) and not entry.get("optional"):
                self._report(call.where, f"inputs.artifacts.{entry.get('name')} was not supplied")
            scope[f"inputs.{name}"] = self._placeholder()
            if entry.get("path"):
                scope[f"inputs.{name}.path"] = str(entry["path"])
        return scope

    def _check_tags(self, value: Any, where: Where, scope: MutableMapping[str, Any], inputs: Mapping[str, str]) -> None:
        """Report tags with a known prefix that name nothing in the scope."""
        try:
            value = substitute(substitute(value, self._globals), {**self._globals, **inputs})
        except ExpressionError as error:
            if "cannot finish" in str(error):
                self._report(where, f"a value has a control character; {error}")
            return
        scope_map = ChainMap[str, Any](self._globals, dict[str, Any](), scope)
        for name in unknown_tags(value, scope_map):
            self._report(where, f"cannot resolve {{{{{name}}}}}{nearest_hint(name, scope_map)}")
        for text in unclosed_tags(value):
            self._report(where, f"{{{{{text}: the tag is not closed")

    def _check_leaf(self, template: Mapping[str, Any], where: Where, inputs: dict[str, str], inline: bool) -> None:
        scope = dict(inputs) if inline else {**inputs, "pod.name": ""}
        body = {key: value for key, value in template.items() if key not in ("inputs", "metrics")}
        self._check_tags(body, where, scope, inputs)
        own = {**scope, "inputs": ""}
        self._check_tags(template.get("inputs"), (*where, "inputs"), own, inputs)

    def _called_templates(self, entries: list[Any], where: Where) -> dict[str, Mapping[str, Any] | None]:
        """The template of each task or step, by its name; says what is wrong with the reference."""
        return {str(entry.get("name")): self._called_template(entry, (*where, i)) for i, entry in enumerate(entries)}

    def _called_template(self, entry: Mapping[str, Any], where: Where) -> Mapping[str, Any] | None:
        inline, reference, name = entry.get("inline"), entry.get("templateRef"), entry.get("template")
        if reference and name:
            self._report((*where, "template"), "has no effect beside a templateRef; remove one of them")
            return None
        if reference:
            if not reference.get("template"):
                self._report((*where, "templateRef"), "needs a template: the name of one in the WorkflowTemplate")
                return None
            if "{{" in f"{reference.get('name')}{reference.get('template')}":
                return None
            try:
                return self._library.template(reference)
            except MissingObjectError as error:
                self._add([error.problem((*where, "templateRef"))])
                return None
        if inline:
            return inline
        if not name:
            self._report(where, "has nothing to run; give it a template")
        elif name not in self._home:
            self._report((*where, "template"), f"there is no template {name!r}{nearest_hint(str(name), self._home)}")
        return self._home.get(str(name))

    def _check_called(self, entry: Mapping[str, Any], template: Mapping[str, Any] | None, where: Where) -> None:
        """Go on into what a task or step calls, with stand-ins for its arguments."""
        if template is None:
            return
        arguments = entry.get("arguments") or {}
        names = frozenset(
            f"{kind}.{argument.get('name')}"
            for kind in ("parameters", "artifacts")
            for argument in list_at(arguments, kind)
        )
        inline = template is entry.get("inline")
        place = (*where, "inline") if inline else self._template_path(template) or where
        self._report_missing(template, names, where)
        home = self._library.templates(entry["templateRef"]) if entry.get("templateRef") else self._home
        self._check_template(TemplateUse(template, place, names | self._required_inputs(template), {}, home, inline))

    def _required_inputs(self, template: Mapping[str, Any]) -> frozenset[str]:
        """Inputs without which the template cannot be called."""
        return frozenset(
            f"parameters.{entry.get('name')}"
            for entry in list_at(template, "inputs", "parameters")
            if entry.get("value", entry.get("default")) is None and entry.get("valueFrom") is None
        )

    def _report_missing(self, template: Mapping[str, Any], names: frozenset[str], where: Where) -> None:
        for need in sorted(self._required_inputs(template) - names):
            self._report(where, f"templates.{template.get('name')}: inputs.{need} was not supplied")

    def _loop_scope(self, entry: Mapping[str, Any], where: Where) -> dict[str, str]:
        """What `{{item}}` may be there; says what is wrong with the loop."""
        loops = [name for name in ("withItems", "withParam", "withSequence") if entry.get(name)]
        if len(loops) > 1:
            self._report(where, f"has {' and '.join(loops)}; keep one")
        sequence = entry.get("withSequence") or {}
        if sequence.get("count") is not None and sequence.get("end") is not None:
            self._report((*where, "withSequence"), "has both count and end; keep one")
        return item_scope(entry)

    def _output_scope(self, prefix: str, template: Mapping[str, Any] | None, is_looped: bool) -> dict[str, str]:
        """What a task or step gives others to read; what it exports becomes the workflow's."""
        for what in ("parameters", "artifacts"):
            for entry in list_at(template, "outputs", what):
                if entry.get("globalName"):
                    self._globals[f"workflow.outputs.{what}.{entry['globalName']}"] = self._placeholder()
        return output_scope(prefix, template, is_looped)

    def _check_steps(self, template: Mapping[str, Any], where: Where, inputs: dict[str, str]) -> None:
        scope: dict[str, str] = dict(inputs)
        names: set[str] = set()
        for index, group in enumerate(template.get("steps") or []):
            here = (*where, "steps", index)
            group = group or []
            self._add(fields.task_name_problems(group, here))
            for number, step in enumerate(group):
                if step.get("name") in names:
                    self._report((*here, number, "name"), f"{step['name']!r} is the name of an earlier step")
                names.add(str(step.get("name")))
            called_templates = self._called_templates(group, here)
            self._check_group(group, called_templates, here, scope, inputs)
            for step in group:
                prefix = f"steps.{step.get('name')}"
                scope |= self._output_scope(
                    prefix, called_templates[str(step.get("name"))], has_items(step)
                ) | status_scope(prefix)
        self._check_outputs(template, where, scope, inputs)

    def _check_group(self, group: list[Any], called_templates: dict[str, Any], here: Where, scope: dict[str, str],
               inputs: dict[str, str]) -> None:  # fmt: skip
        for number, step in enumerate(group):
            place = (*here, number)
            self._add(fields.hook_problems(step, place))
            items = self._loop_scope(step, place)
            body = {key: value for key, value in step.items() if key not in ("hooks", "inline", "withItems")}
            scope_map = ChainMap(items, scope)
            self._check_tags(body, place, scope_map, inputs)
            self._check_inline(step, place, scope_map, inputs)
            self._add(fields.argument_problems(step.get("arguments") or {}, (*place, "arguments")))
            self._check_called(step, called_templates[str(step.get("name"))], place)

    def _check_inline(self, entry: Mapping[str, Any], where: Where, scope: Mapping[str, Any],
                     inputs: Mapping[str, str]) -> None:  # fmt: skip
        """An inline template is part of its task: what it refers to must be known in the task too, or be its own."""
        inline = entry.get("inline")
        if inline and kind_of(inline) in fields.LEAVES:
            own = {
                f"inputs.parameters.{parameter.get('name')}": ""
                for parameter in list_at(inline, "inputs", "parameters")
            }
            for artifact in list_at(inline, "inputs", "artifacts"):
                own |= {
                    f"inputs.artifacts.{artifact.get('name')}": "",
                    f"inputs.artifacts.{artifact.get('name')}.path": "",
                }
            self._check_tags(inline, (*where, "inline"), {**scope, **own}, inputs)

    def _check_dag(self, template: Mapping[str, Any], where: Where, inputs: dict[str, str]) -> None:
        tasks = [task for task in list_at(template, "dag", "tasks") if isinstance(task, Mapping)]
        here = (*where, "dag", "tasks")
        if not tasks:
            self._report(here, "is empty")
            return
        self._add(fields.task_name_problems(tasks, here))
        self._add(dag_rules.style_problems(tasks, here))
        called_templates = self._called_templates(tasks, here)
        by_name = {str(task.get("name")): task for task in tasks}
        waits = {str(t.get("name")): {name for name, _ in needs(depends_of(t, by_name))} for t in tasks}
        self._add(dag_rules.reference_problems(tasks, by_name, here))
        if cycle := fields.cyclic_names({name: needed_tasks & by_name.keys() for name, needed_tasks in waits.items()}):
            self._report(here, f"{', '.join(sorted(cycle))} wait for each other")
            return
        base: dict[str, str] = dict(inputs)
        for task in tasks:
            base |= self._output_scope(
                f"tasks.{task.get('name')}", called_templates[str(task.get("name"))], has_items(task)
            )
        ancestors = Ancestry(waits)
        for index, task in enumerate(tasks):
            self._check_task(task, called_templates, (*here, index), base, ancestors, inputs)
        for target in str(substitute(template["dag"].get("target") or "", {**self._globals, **inputs})).split():
            if target not in by_name and "{{" not in target:
                self._report((*where, "dag", "target"), f"there is no task {target}{nearest_hint(target, by_name)}")
        every = base | {key: "" for task in by_name for key in status_scope(f"tasks.{task}")}
        self._check_outputs(template, where, every, inputs)

    def _check_task(self, task: Mapping[str, Any], called_templates: Mapping[str, Any], where: Where,
              base: dict[str, str], ancestors: Ancestry, inputs: dict[str, str]) -> None:  # fmt: skip
        own = str(task.get("name"))
        more = self._loop_scope(task, where)
        for read_task in {name.split(".")[1] for name in names_read(task) if name.startswith("tasks.")}:
            if read_task in called_templates and ancestors.is_ancestor(own, read_task):
                more |= status_scope(f"tasks.{read_task}")
        scope = ChainMap(more, base)
        body = {key: value for key, value in task.items() if key not in ("hooks", "inline", "withItems")}
        self._check_tags(body, where, scope, inputs)
        self._check_inline(task, where, scope, inputs)
        self._add(fields.argument_problems(task.get("arguments") or {}, (*where, "arguments")))
        self._add(dag_rules.order_problems(task, called_templates, ancestors, where))
        self._check_called(task, called_templates[str(task.get("name"))], where)

    def _check_outputs(self, template: Mapping[str, Any], where: Where, scope: Mapping[str, str],
                     inputs: Mapping[str, str]) -> None:  # fmt: skip
        self._check_tags(template.get("outputs"), (*where, "outputs"), dict(scope), inputs)
