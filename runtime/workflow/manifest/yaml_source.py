"""YAML as Argo reads it (YAML 1.1, by way of JSON), with the line of every field: `read(path) -> [Document]`.

What is read is bounded before anything is made of it: the file, how deep it nests, and what its aliases come to.
"""

import math
import re
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import yaml

FieldPath = tuple[str | int, ...]
MAX_BYTES = 3 << 20
"""Of a file. Kubernetes takes an object of 1.5 MiB at most (etcd's limit of a request)."""
MAX_NESTING = 100
"""How deep lists and mappings may stand in each other; a template inside a template takes five."""
MAX_DIGITS = 300
"""Of a number: a float holds no longer one."""
MAX_VALUES = 200_000
"""Of a document; what an alias stands for counts each time. Go's reader bounds their share."""


class ReadError(ValueError):
    """No YAML, or unreadable: one line with file and line."""


@dataclass(frozen=True)
class Document:
    """One YAML document."""

    value: Any
    file: str
    lines: dict[FieldPath, int] = field(default_factory=dict)
    """Line (from 1) of each field and list item, by its path from the top."""
    repeated: list[tuple[FieldPath, int]] = field(default_factory=list)
    """Keys that a mapping has twice, and the line of the second."""

    def line(self, path: FieldPath) -> int:
        """Of the field, or of the nearest around it."""
        while path and path not in self.lines:
            path = path[:-1]
        return self.lines.get(path, 1)


_BaseLoader: Any = getattr(yaml, "CSafeLoader", yaml.SafeLoader)


class _Loader(_BaseLoader):
    """Plain words as Go's YAML reader takes them; a timestamp is a text."""


_Loader.yaml_implicit_resolvers = {}
for _tag, _pattern, _first in (
    ("bool", r"^(?:y|Y|yes|Yes|YES|n|N|no|No|NO|true|True|TRUE|false|False|FALSE|on|On|ON|off|Off|OFF)$", "yYnNtTfFoO"),
    ("null", r"^(?:~|null|Null|NULL|)$", ("~", "n", "N", "")),
    ("int", r"^[-+]?(?:0b[01_]+|0o?[0-7_]+|0x[0-9a-fA-F_]+|(?:0|[1-9][0-9_]*))$", "-+0123456789"),
    ("float", r"^[-+]?(?:(?:\.[0-9]+|[0-9]+(?:\.[0-9]*)?)(?:[eE][-+]?[0-9]+)?|\.(?:inf|Inf|INF)|\.(?:nan|NaN|NAN))$",
     "-+0123456789."),
    ("merge", r"^(?:<<)$", "<"),
):  # fmt: skip
    _Loader.add_implicit_resolver(f"tag:yaml.org,2002:{_tag}", re.compile(_pattern), list(_first))


def _boolean(loader: _Loader, node: yaml.ScalarNode) -> bool:
    return node.value.lower() in ("y", "yes", "true", "on")


def _integer(loader: _Loader, node: yaml.ScalarNode) -> int | float:
    """One that 64 bits do not hold is a float, as in Go."""
    text = node.value.replace("_", "")
    sign, digits = (-1, text[1:]) if text[:1] == "-" else (1, text.lstrip("+"))
    base = {"0x": 16, "0b": 2, "0o": 8}.get(digits[:2], 8 if len(digits) > 1 and digits[0] == "0" else 10)
    if len(digits) > MAX_DIGITS:
        raise ValueError(f"a number has {len(digits)} digits, which is too long")
    value = sign * int(digits[2:] if digits[:2] in ("0x", "0b", "0o") else digits, base)
    return value if -(1 << 63) <= value < 1 << 64 else float(value)


def _float(loader: _Loader, node: yaml.ScalarNode) -> float:
    value = float(re.sub(r"(?i)\.(?=inf|nan)", "", node.value.replace("_", "")))
    if not math.isfinite(value):
        raise ValueError(f"{node.value}: JSON has no such number")
    return value


_Loader.add_constructor("tag:yaml.org,2002:bool", _boolean)
_Loader.add_constructor("tag:yaml.org,2002:int", _integer)
_Loader.add_constructor("tag:yaml.org,2002:float", _float)
_Loader.add_constructor("tag:yaml.org,2002:timestamp", _Loader.construct_yaml_str)
for _tag in ("set", "omap", "pairs", "binary"):
    _Loader.add_constructor(f"tag:yaml.org,2002:{_tag}", _Loader.construct_undefined)  # JSON has none of them.


def read(path: Path) -> list[Document]:
    """The documents of a file (several between `---`). Raises ReadError."""
    try:
        with path.open("rb") as file:
            data = file.read(MAX_BYTES + 1)
        text = data.decode()
    except OSError as error:
        raise ReadError(f"{path}: {error.strerror}") from None
    except UnicodeDecodeError:
        raise ReadError(f"{path}: not YAML: not UTF-8 text") from None
    return read_text(text, str(path))


def read_text(text: str, file: str = "") -> list[Document]:
    """The documents of a text; empty ones are left out. Raises ReadError."""
    if len(text) > MAX_BYTES:
        raise ReadError(
            f"{file or 'the text'}: larger than {MAX_BYTES >> 20} MiB; Kubernetes accepts objects of at most 1.5 MiB"
        )
    loader, documents = None, []
    try:
        _check_nesting(text)
        loader = _Loader(text)
        while loader.check_node():
            node = loader.get_node()
            _check_size(node, {})
            repeated = list(_repeated_keys(node, ()))  # First: a key that takes a merged one's place is no repetition.
            value = loader.construct_document(node)
            if value is not None:
                documents.append(Document(value, file, dict(_line_numbers(node, ())), repeated))
    except yaml.MarkedYAMLError as error:
        line = error.problem_mark.line + 1 if error.problem_mark else 1
        why = " ".join(str(error.problem or error.context or error).split())
        raise ReadError(f"{file}:{line}: not YAML: {why}" if file else f"line {line}: not YAML: {why}") from None
    except (yaml.YAMLError, ValueError, OverflowError) as error:
        raise ReadError(f"{file}: not YAML: {' '.join(str(error).split())}") from None
    finally:
        if loader is not None:
            loader.dispose()
    return documents


class _BoundError(yaml.MarkedYAMLError):
    """What is read is larger than it may be."""

    def __init__(self, problem: str, mark: yaml.Mark) -> None:
        super().__init__(problem=problem, problem_mark=mark)


def _check_nesting(text: str) -> None:
    """Before anything is made of it: what makes it recurses. Raises MarkedYAMLError."""
    depth = 0
    for event in yaml.parse(text, Loader=_BaseLoader):
        if isinstance(event, yaml.CollectionStartEvent):
            depth += 1
            if depth > MAX_NESTING:
                raise _BoundError(f"lists and mappings are nested more than {MAX_NESTING} deep", event.start_mark)
        elif isinstance(event, yaml.CollectionEndEvent):
            depth -= 1


def _check_size(node: yaml.Node, sizes: dict[yaml.Node, int], around: tuple[yaml.Node, ...] = ()) -> int:
    """How many values it comes to, with those that its aliases stand for. Raises MarkedYAMLError."""
    if isinstance(node, yaml.ScalarNode):
        return 1
    if node in around:
        raise _BoundError("an alias stands inside the value that it refers to", node.start_mark)
    if node not in sizes:
        each = [child for pair in node.value for child in pair] if isinstance(node, yaml.MappingNode) else node.value
        sizes[node] = 1 + sum(_check_size(child, sizes, (*around, node)) for child in each)
        if sizes[node] > MAX_VALUES or len(around) > MAX_NESTING:
            raise _BoundError(f"it has more than {MAX_VALUES} values, with its aliases expanded", node.start_mark)
    return sizes[node]


def _repeated_keys(node: yaml.Node, path: FieldPath) -> Iterator[tuple[FieldPath, int]]:
    if isinstance(node, yaml.MappingNode):
        keys_seen: set[str] = set()
        for key, value in node.value:
            name = str(key.value)
            if name in keys_seen and name != "<<":
                yield (*path, name), key.start_mark.line + 1
            keys_seen.add(name)
            yield from _repeated_keys(value, (*path, name))
    elif isinstance(node, yaml.SequenceNode):
        for index, value in enumerate(node.value):
            yield from _repeated_keys(value, (*path, index))


def _line_numbers(node: yaml.Node, path: FieldPath) -> Iterator[tuple[FieldPath, int]]:
    yield path, node.start_mark.line + 1
    if isinstance(node, yaml.MappingNode):
        for key, value in node.value:
            key_path = (*path, str(key.value))
            yield from _line_numbers(value, key_path)
            yield key_path, key.start_mark.line + 1
    elif isinstance(node, yaml.SequenceNode):
        for index, value in enumerate(node.value):
            yield from _line_numbers(value, (*path, index))
