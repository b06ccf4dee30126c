"""`everstep.step`: a step of a pipeline, from a dataclass and a function in a package of your own.

    @dataclass(frozen=True)
    class Config:
        model: str = ""
        \"""Folder or URI of the model.\"""

    @everstep.step(outputs=("score",))
    def score(config: Config) -> dict[str, object]:
        ...
        return {"score": 0.93}

    if __name__ == "__main__":
        score.main()

Each field is a flag of `python -m package.module` and an input of the template. In a pipeline, `score.task(model=...)`
is a task, whose output is `task.score`.
"""

import dataclasses
import inspect
import os
import sys
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import TYPE_CHECKING, Any, Generic, NoReturn, TypeVar, get_type_hints, overload

from everstep.errors import BadInput
from everstep.steps.entry import Result
from everstep.steps.entry import main as run_as_process
from everstep.steps.progress import Progress, write_for_argo

if TYPE_CHECKING:
    from hera.workflows import Container

    from everstep.steps.template import StepTask

__all__ = ["OwnStep", "progress", "step"]

C = TypeVar("C")
_progress = Progress()


@dataclass(frozen=True)
class Common:
    """The fields that every step has besides its own."""

    store: str = "runs/store"
    """URI of the store: a directory, or s3://bucket/prefix."""
    run: str = "by-hand"
    """Name of the run this step belongs to."""
    task: str = ""
    """Name of the task in that run."""
    outputs: str = "outputs"
    """Folder for the outputs, one file each."""

    def check(self) -> None:
        """A config of your own may raise `everstep.errors.BadInput` here, before the step works."""


@dataclass(frozen=True)
class OwnStep(Generic[C]):
    """A function as a step. Call it like the function."""

    function: Callable[[C], Any]
    """What it runs."""
    name: str
    """The name of its template, and of its task if that has no other."""
    config: type[Any]
    """The function's dataclass with the common fields."""
    module: str
    """What `python -m` runs."""
    settings: Mapping[str, Any]
    """Of its template."""

    def __call__(self, config: C) -> Any:
        """Call the function."""
        return self.function(config)

    def template(self) -> "Container":
        """Its Hera template, the same for all its tasks. Its module must be importable where it runs: installed here,
        and in the image.

        Raises BadInput if the function is in the file that is run.
        """
        return self._template

    @cached_property
    def _template(self) -> "Container":
        from everstep.steps.template import step_template
        from everstep.version import IMAGE

        if self.module == "__main__":
            raise BadInput(
                f"step {self.name}: its function is in the file that is run; move it to a module that can be imported, "
                "as `python -m MODULE` must find it"
            )
        summary, _, rest = (inspect.getdoc(self.function) or self.name).partition("\n")
        title = self.name.replace("-", " ").capitalize()
        description = summary if not rest else f"{summary} {' '.join(rest.split())}"
        settings = {"image": IMAGE, **self.settings}
        return step_template(
            self.name, self.config, title=title, description=description, module=self.module, **settings
        )

    def task(self, name: str = "", **arguments: object) -> "StepTask":
        """A task of it; arguments are the fields of its dataclass, attributes of the task its outputs.

        Raises TypeError for an argument that is no field, and what `template` raises.
        """
        from everstep.steps.template import step_task

        return step_task(self.template(), name or self.name, arguments)

    def main(self) -> NoReturn:
        """Run as a process: flags from the fields, outputs as files, errors in one line, exit codes of steps.

        Raises TypeError if the function returns other outputs than those of the step.
        """
        module = getattr(sys.modules["__main__"].__spec__, "name", "") or self.module
        run_as_process(self.name, self.config, self._run, module=module)

    def _run(self, config: Any) -> Result:
        returned = self.function(config)
        values = {} if returned is None else returned
        if not isinstance(values, Mapping):
            raise TypeError(
                f"step {self.name} returned a {type(values).__name__}: return a dict of its outputs, or None"
            )
        declared_outputs = {*self.settings.get("outputs", ()), *self.settings.get("artifacts", ())}
        if set(values) != declared_outputs:
            raise TypeError(f"step {self.name} returned {sorted(values)}, its outputs are {sorted(declared_outputs)}")
        plain = {name: str(value) for name, value in values.items() if not isinstance(value, Path)}
        files = {name: value for name, value in values.items() if isinstance(value, Path)}
        summary = "  ".join(f"{name} {value}" for name, value in plain.items()) or "done"
        return Result(summary, outputs=plain, facts=plain, artifacts=files)


@overload
def step(function: Callable[[C], Any], /) -> OwnStep[C]: ...
@overload
def step(
    *,
    name: str = "",
    outputs: Sequence[str] = (),
    artifacts: Sequence[str] = (),
    cpu: float = 1,
    memory: str = "2Gi",
    deadline_s: int | None = None,
    **settings: Any,
) -> Callable[[Callable[[C], Any]], OwnStep[C]]: ...
def step(
    function: Callable[[C], Any] | None = None,
    /,
    *,
    name: str = "",
    outputs: Sequence[str] = (),
    artifacts: Sequence[str] = (),
    cpu: float = 1,
    memory: str = "2Gi",
    deadline_s: int | None = None,
    **settings: Any,
) -> OwnStep[C] | Callable[[Callable[[C], Any]], OwnStep[C]]:
    """Make a step of a function, whose only argument is a frozen dataclass with a default for each field.

    The function returns a dict with each of its `outputs` (numbers and strings) and `artifacts` (paths of files or
    folders), or None. `name`: by default that of the function. `cpu` is requested, in cores; `memory`, a Kubernetes
    quantity, is the request and the limit. The pod ends after `deadline_s` seconds. `settings`: image, gauges,
    shared_memory. Without any, `@everstep.step` is enough. Raises BadInput for a dataclass that cannot be flags.
    """

    def decorate(function: Callable[[C], Any]) -> OwnStep[C]:
        own = name or function.__name__.replace("_", "-")
        template = {**settings, "outputs": tuple(outputs), "artifacts": tuple(artifacts), "cpu": cpu, "memory": memory}
        return OwnStep(
            function,
            own,
            _with_common_fields(function, own),
            function.__module__,
            {**template, "deadline_s": deadline_s},
        )

    return decorate if function is None else decorate(function)


def progress(count: int, total: int, text: str = "") -> None:
    """Say how far a step is: a line on stderr, at most two a second, and `count/total` in Argo's UI."""
    _progress.say(text or f"{count}/{total}")
    write_for_argo(count, total, os.environ)


def _with_common_fields(function: Callable[..., Any], name: str) -> type[Any]:
    hints = [hint for key, hint in get_type_hints(function).items() if key != "return"]
    if len(hints) != 1 or not dataclasses.is_dataclass(hints[0]):
        raise BadInput(f"step {name}: its function must have one argument, annotated with a dataclass")
    config: Any = hints[0]
    common = {field.name for field in dataclasses.fields(Common)}
    for field in dataclasses.fields(config):
        if field.name in common:
            raise BadInput(f"step {name}: every step has the field {field.name}; rename {config.__name__}.{field.name}")
        if field.default is dataclasses.MISSING:
            raise BadInput(f"step {name}: {config.__name__}.{field.name} has no default, which its template needs")
    fields = {"task": name, "__annotations__": {"task": str}, "__doc__": config.__doc__}
    return dataclass(frozen=True)(type(config.__name__, (config, Common), fields))
