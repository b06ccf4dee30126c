"""Text documents in files, which lie on this machine or in an S3 store.

`files` finds the files that the user names. `borders` finds where a file may be cut for parallel readers. `documents`
reads the documents that begin in a range. `source` opens files. Needs zstandard for `.zst`, pyarrow for `.parquet`.

lm-dataformat's own reader is not used: it yields raw lines for `.jsonl.gz` and dictionaries for `.json.gz`, fails on
`.jsonl.zst.tar`, and reads the eleventh file of an archive before the third.
"""

from everstep.runtime.text.borders import Extent, extents
from everstep.runtime.text.documents import DocumentReader, Piece, piece_of
from everstep.runtime.text.errors import TextError
from everstep.runtime.text.files import KINDS, find_files
from everstep.runtime.text.source import FileVersion, file_version, open_bytes

__all__ = [
    "KINDS",
    "DocumentReader",
    "Extent",
    "FileVersion",
    "Piece",
    "TextError",
    "extents",
    "file_version",
    "find_files",
    "open_bytes",
    "piece_of",
]
