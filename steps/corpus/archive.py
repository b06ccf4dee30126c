"""Writes an lm-dataformat archive that reads back in the order written."""

import shutil
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path
from types import TracebackType
from typing import Any

FILE_BYTES = 4 << 20
"""Approximate bytes of text per file of an archive: later readers divide the files among them."""


@dataclass
class Split:
    """What was written; `files` in reading order."""

    documents: int = 0
    bytes: int = 0
    """Bytes of text, UTF-8."""
    files: list[dict[str, Any]] = field(default_factory=list)
    """Per file: name, documents, bytes of text."""


class ArchiveWriter:
    """An lm-dataformat archive in `folder`, replacing what is there.

    lm-dataformat names its files `data_<n>_time<t>_<name>.jsonl.zst`, which sort as 0, 1, 10, 2. Here each file gets a
    six-digit number and no time, so that the same documents give the same files.
    """

    def __init__(self, folder: Path) -> None:
        from lm_dataformat import Archive

        shutil.rmtree(folder, ignore_errors=True)
        self.split = Split()
        self._folder = folder
        self._archive = Archive(str(folder))
        self._documents = 0
        self._bytes = 0

    def add(self, text: str, size: int, source: str) -> None:
        """Add one document of `size` bytes in UTF-8."""
        self._archive.add_data(text, meta={"source": source})
        self._documents += 1
        self._bytes += size
        if self._bytes >= FILE_BYTES:
            self._commit()

    def _commit(self) -> None:
        self._archive.commit()
        (archive_file,) = self._folder.glob("data_*_time*_default.jsonl.zst")
        name = f"data_{len(self.split.files):06d}.jsonl.zst"
        archive_file.rename(self._folder / name)
        self.split.files.append({"name": name, "documents": self._documents, "bytes": self._bytes})
        self.split.documents += self._documents
        self.split.bytes += self._bytes
        self._documents = self._bytes = 0

    def __enter__(self) -> "ArchiveWriter":
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if kind is None and self._documents:
            self._commit()
        with suppress(OSError):  # the error that ends this block already says what is unwritten
            self._archive.fh.close()
        (self._folder / "current_chunk_incomplete").unlink(missing_ok=True)
