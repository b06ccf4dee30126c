"""The page of the Python API: it has every public name and no other, and says of each what a caller must know."""

import ast
import builtins
import importlib
import re
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

import everstep
from docs.rendering import job_spec, python_api
from docs.rendering.source import Function, definition, docstring, documented_names, is_property, parse, public_methods
from everstep import errors, job

PUBLIC = (
    *python_api.SCRIPT, *python_api.RETURNED, *python_api.PIPELINE, *python_api.OWN_STEP,
    *(name for names in python_api.MODULES.values() for name in names),
)  # fmt: skip
RAISES_NOTHING = {
    "ElasticSampler.advance", "ElasticSampler.state_dict", "Batches.state_dict", "Batches.load_state_dict",
    "Loader.state_dict", "Checkpointer.close", "parameters", "parameter", "progress", "EverstepCallback",
}  # fmt: skip
"""Functions of which no caller has to expect an error; all others name theirs."""
ERROR = re.compile(r"\b(?:[A-Z]\w*Error|BadInput|SystemExit)\b")


def _names_of(module: str) -> set[str]:
    """`__all__` of a module that may need a framework, so it is parsed; without one, its public classes."""
    tree = parse(f"{module.replace('.', '/')}.py")
    for node in tree.body:
        if isinstance(node, ast.Assign) and ast.unparse(node.targets[0]) == "__all__":
            return set(ast.literal_eval(node.value))
    return {node.name for node in tree.body if isinstance(node, ast.ClassDef) and not node.name.startswith("_")}


def _functions() -> Iterator[tuple[str, str]]:
    """(name, docstring) of each function and method that the page shows."""
    for symbol in PUBLIC:
        node = definition(parse(symbol.path), symbol.name)
        if isinstance(node, Function):
            yield symbol.name, docstring(node)
            continue
        shown = set(symbol.hidden)
        for part in (node, *(python_api.base_class(*base) for base in symbol.bases)):
            for method in (*(n for n in part.body if isinstance(n, Function) and n.name == "__init__"),
                           *public_methods(part)):  # fmt: skip
                if method.name not in shown and not is_property(method) and docstring(method):
                    shown.add(method.name)
                    yield (
                        symbol.name if method.name == "__init__" else f"{symbol.name}.{method.name}",
                        docstring(method),
                    )


def _fields() -> Iterator[tuple[str, str, str]]:
    """(name, type, text) of each field that the page shows."""
    for symbol in PUBLIC:
        node = definition(parse(symbol.path), symbol.name)
        if isinstance(node, ast.ClassDef):
            for name, kind, _, text in documented_names(node):
                if not name.startswith("_") and name not in symbol.hidden:
                    yield f"{symbol.name}.{name}", kind, text


def test_every_public_name_is_in_the_reference_and_no_other() -> None:
    shown = {symbol.name for symbol in (*python_api.SCRIPT, *python_api.PIPELINE, *python_api.OWN_STEP)}
    assert shown == set(everstep.__all__) - {"__version__"}
    assert {error.name for error in python_api.ERRORS} == set(errors.__all__)
    assert {struct.__name__ for struct in (*job_spec.STRUCTS, *job_spec.ENUMS)} == set(job.__all__)


@pytest.mark.parametrize("module", python_api.MODULES)
def test_every_public_name_of_a_module_is_in_the_reference_and_no_other(module: str) -> None:
    shown = {symbol.name for symbol in python_api.MODULES[module]}
    assert shown == _names_of(module) - (set() if module == "everstep.flash_checkpoint" else {"StorageType"})


def test_every_public_name_says_what_it_does() -> None:
    text = python_api.render()
    for section in re.split(r"^### ", text, flags=re.MULTILINE)[1:]:
        words = re.sub(r"```.*?```", "", section.partition("\n")[2], flags=re.DOTALL)
        assert len(words.split()) > 3, section.partition("\n")[0]


def test_every_field_says_what_it_is_and_every_tensor_its_shape() -> None:
    assert [name for name, _, text in _fields() if not text] == []
    arrays = {name: text for name, kind, text in _fields() if re.search(r"Tensor|ndarray", kind)}
    assert arrays
    assert [name for name, text in arrays.items() if not re.search(r"\(n,.*\) \w+\d", text)] == []


def test_every_function_says_which_errors_it_raises() -> None:
    silent = {name for name, text in _functions() if not re.search(r"\b[Rr]aises?\b", text)}
    assert silent == RAISES_NOTHING & {name for name, _ in _functions()}
    assert silent == RAISES_NOTHING


def test_every_error_that_the_page_names_can_be_caught() -> None:
    named = {name for _, text in _functions() for name in ERROR.findall(text)}
    assert {"StateError", "RestoreError", "LinkError", "StoreError", "BadInput"} <= named
    assert {name for name in named if not hasattr(builtins, name)} <= set(errors.__all__)
    for name in errors.__all__:
        assert issubclass(getattr(errors, name), Exception)


def test_errors_and_job_specs_need_no_import_of_their_own() -> None:
    script = "import everstep\nassert everstep.errors.RestoreError and everstep.job.JobSpec"
    subprocess.run([sys.executable, "-c", script], check=True)


def test_a_name_that_is_no_error_is_refused() -> None:
    with pytest.raises(AttributeError, match="has no attribute 'NoSuchError'"):
        errors.NoSuchError  # noqa: B018 - the access itself raises


def test_every_step_names_its_outputs() -> None:
    for step in python_api.STEPS:
        text = docstring(definition(parse(f"steps/{step}/template.py"), "task"))
        outputs = importlib.import_module(f"everstep.steps.{step}.template").template().outputs
        assert outputs
        assert [output.name for output in outputs if f"`{output.name.replace('-', '_')}`" not in text] == [], step


def test_no_public_name_is_a_modules() -> None:
    """Once imported, the module would take the name's place."""
    assert not set(everstep.__all__) & {path.stem for path in Path(everstep.__file__).parent.iterdir()}
