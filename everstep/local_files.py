"""Files of this machine that a run on a cluster needs: put into its store under their digest, and named by address.

A pipeline marks the fields of its config: `corpus: Annotated[str, LocalFile.TEXT] = ""`.
"""

import ast
import dataclasses
import hashlib
import os
import re
import subprocess
import sys
import tempfile
import typing
from collections.abc import Mapping, Sequence
from enum import Enum
from pathlib import Path
from typing import Any, TypeVar

from everstep.errors import BadInput
from everstep.runtime.store import NoSuchKey, Store, StoreError, Unavailable, open_store
from everstep.runtime.store.code import put_code

C = TypeVar("C")
MODEL_KINDS = (".safetensors", ".json", ".txt", ".model", ".jinja")
"""Suffixes of a model's files; those of a tokenizer are the same without weights."""
FINISHED_MODEL = "everstep-model.json"
"""The last file of a finished model or tokenizer (steps/model/directory.py)."""
FINISHED_TEXT = "upload.json"
MOST_CODE_BYTES = 256_000_000


class LocalFile(Enum):
    """What a field of a pipeline's config names if it is a path of this machine. Any other value stays as it is."""

    TEXT = "text"
    """Comma separated files, globs and folders of text."""
    TOKENIZER = "tokenizer"
    """A tokenizer.json, or a Hugging Face folder."""
    MODEL = "model"
    """A Hugging Face folder."""
    SCRIPT = "script"
    """A Python script; `--code` names the folder that is uploaded with it."""
    JOB_SPEC = "job spec"
    """A YAML file, whose text becomes the value."""


def with_addresses(config: C, store_uri: str, code: str) -> C:
    """The config with addresses in the store in place of this machine's paths. Raises BadInput, Unavailable.

    `code`: the folder that comes along with each script; "": the script alone.
    """
    root = _code_root(code)
    marked = {name: kind for name, kind in _marked_fields(type(config)).items() if getattr(config, name)}
    scripts = [name for name, kind in marked.items() if kind is LocalFile.SCRIPT]
    if root and not scripts:
        raise BadInput(f"--code {code}: it belongs to a --script; give one")
    changes: dict[str, str] = {}
    try:
        for name, kind in marked.items():
            upload = _Upload(store_uri, f"--{name.replace('_', '-')}", getattr(config, name), root)
            if (value := upload.address(kind)) is not None:
                changes[name] = value
    except StoreError as error:
        error_type = Unavailable if isinstance(error, Unavailable) else BadInput
        raise error_type(
            f"{error}; this machine's files cannot be put into the store: set its variables here, too, or give s3:// "
            "addresses"
        ) from None
    return dataclasses.replace(config, **changes) if changes else config  # type: ignore[type-var]


def _marked_fields(config: type[Any]) -> dict[str, LocalFile]:
    hints = typing.get_type_hints(config, include_extras=True)
    marks = {name: getattr(hint, "__metadata__", ()) for name, hint in hints.items()}
    return {name: mark for name, some in marks.items() for mark in some if isinstance(mark, LocalFile)}


def _code_root(code: str) -> Path | None:
    if code and not Path(code).is_dir():
        raise BadInput(f"--code {code}: no such folder")
    return Path(code).resolve() if code else None


@dataclasses.dataclass(frozen=True)
class _Upload:
    """One flag's value on its way into the store."""

    store_uri: str
    flag: str
    value: str
    root: Path | None

    def address(self, kind: LocalFile) -> str | None:
        """What the manifest says instead; None: the value stays. Raises BadInput, StoreError."""
        path = Path(self.value.removeprefix("file://"))
        match kind:  # By os.path: Path.is_file raises for a text that is too long for a name.
            case LocalFile.TEXT:
                return self._text()
            case LocalFile.TOKENIZER if os.path.isfile(path):
                config = path.with_name("tokenizer_config.json")
                files = {"tokenizer.json": path} | ({config.name: config} if config.is_file() else {})
                return self._folder("tokenizers", files, FINISHED_MODEL)
            case LocalFile.TOKENIZER if os.path.isdir(path):
                return self._folder("tokenizers", _files_of(path, MODEL_KINDS[1:]), FINISHED_MODEL)
            case LocalFile.MODEL if os.path.isdir(path):
                return self._folder("models", _files_of(path, MODEL_KINDS), FINISHED_MODEL)
            case LocalFile.SCRIPT if os.path.isfile(path):
                return self._script(path.resolve())
            case LocalFile.JOB_SPEC if os.path.isfile(path):
                return path.read_text().rstrip("\n") + "\n"  # More than one line: the text itself, not a file's name.
            case _:
                return None

    def _text(self) -> str | None:
        from everstep.runtime.text import TextError, find_files
        from everstep.runtime.text.files import natural_key

        try:
            files = find_files(self.value, self.flag)
        except TextError as error:
            raise BadInput(str(error)) from None
        local = [name for name in files if "://" not in name]
        if not local:
            return None
        if len(local) < len(files):
            raise BadInput(f"{self.flag} {self.value}: files of this machine beside s3://; give only one of them")
        names = [re.sub(r"[^A-Za-z0-9._-]", "_", Path(name).name) for name in files]
        if sorted(set(names), key=natural_key) != names:  # Not one folder's order: numbers keep the given one.
            names = [f"{number:05}-{name}" for number, name in enumerate(names)]
        path_by_name = {name: Path(file) for name, file in zip(names, files, strict=True)}
        return self._folder("uploads", path_by_name, FINISHED_TEXT)

    def _folder(self, prefix: str, files: Mapping[str, Path], manifest: str) -> str:
        """Put these files into a folder of the store, by their names there; the manifest comes last."""
        if not files:
            raise BadInput(f"{self.flag} {self.value}: it has no usable file")
        store, total = self._open_store(), sum(path.stat().st_size for path in files.values())
        digests = [(name, _digest(path)) for name, path in files.items()]
        key = f"{prefix}/{hashlib.sha256(repr(digests).encode()).hexdigest()[:16]}"
        try:
            store.get(f"{key}/{manifest}", 0, 0)
            _say(f"{self.flag} {self.value}: {_size(total)}, in the store already")
        except NoSuchKey:
            _say(f"{self.flag} {self.value}: {len(files)} files, {_size(total)}, put into the store")
            for name, path in files.items():
                store.put(f"{key}/{name}", path)
            store.create(f"{key}/{manifest}", b"{}\n")
        return f"{store.uri.rstrip('/')}/{key}"

    def _script(self, script: Path) -> str:
        if self.root is None:
            for name in imports_beside(script):
                _say(f"{self.flag} {self.value}: it imports {name} beside it, which stays here; --code {script.parent}")
            return put_code(self._open_store(), script.parent, [script], script)
        if not script.is_relative_to(self.root):
            raise BadInput(f"{self.flag} {self.value}: not below --code {self.root}")
        files = list({*project_files(self.root), script})
        total = sum(path.stat().st_size for path in files)
        if total > MOST_CODE_BYTES:
            raise BadInput(
                f"--code {self.root}: {_size(total)} in {len(files)} files, at most {_size(MOST_CODE_BYTES)}; name "
                "what is not code in its .gitignore"
            )
        _say(f"--code {self.root}: {len(files)} files, {_size(total)}")
        return put_code(self._open_store(), self.root, files, script)

    def _open_store(self) -> Store:
        return open_store(self.store_uri)


def project_files(root: Path) -> list[Path]:
    """The files below a folder, without those that a .gitignore names. Raises BadInput.

    Git itself decides; it is given an empty repository if the folder is in none.
    """
    words = ["ls-files", "--cached", "--others", "--exclude-standard", "-z"]
    if (names := _git(root, words)) is None:
        with tempfile.TemporaryDirectory() as empty:
            place = [f"--git-dir={empty}", f"--work-tree={root}"]
            _git(root, ["init", "--bare", "--quiet", empty])
            names = _git(root, [*place, *words])
    if names is None:
        raise BadInput(f"--code {root}: git cannot list its files")
    paths = [root / name for name in names.split("\0") if name]
    inside = (path for path in paths if path.is_file() and path.resolve().is_relative_to(root))
    return sorted(set(inside))


def _git(folder: Path, words: Sequence[str]) -> str | None:
    """What git prints; None when it fails. Raises BadInput where there is no git."""
    try:
        process = subprocess.run(["git", "-C", folder, *words], capture_output=True, check=False)
    except FileNotFoundError:
        raise BadInput("--code: needs git, which reads .gitignore; install it") from None
    return process.stdout.decode(errors="surrogateescape") if process.returncode == 0 else None


def imports_beside(script: Path) -> list[str]:
    """Modules in the script's own folder that it imports at any place."""
    try:
        nodes = list(ast.walk(ast.parse(script.read_bytes())))
    except (SyntaxError, ValueError):
        return []  # Its own start tells what is wrong with it.
    names = {alias.name for node in nodes if isinstance(node, ast.Import) for alias in node.names}
    names |= {node.module or "" for node in nodes if isinstance(node, ast.ImportFrom) and not node.level}
    tops = sorted({name.partition(".")[0] for name in names} - {""})
    return [top for top in tops if (script.parent / f"{top}.py").is_file() or (script.parent / top).is_dir()]


def _files_of(folder: Path, kinds: Sequence[str]) -> dict[str, Path]:
    files = [path for path in sorted(folder.iterdir()) if path.name.endswith(tuple(kinds)) and path.is_file()]
    return {path.name: path for path in files if path.name != FINISHED_MODEL}


def _digest(path: Path) -> str:
    with path.open("rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()


def _size(count: int) -> str:
    return f"{count / 1e6:.1f} MB" if count >= 1e5 else f"{count / 1e3:.1f} kB"


def _say(text: str) -> None:
    print(text, file=sys.stderr, flush=True)
