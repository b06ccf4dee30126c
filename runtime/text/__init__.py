"""Text documents in files: which files are meant (`files`), where one may be cut for parallel readers (`borders`),
and the documents that begin in a range of it (`documents`). Files of this machine or of an S3 store (`source`); needs
zstandard for `.zst`, pyarrow for `.parquet`.

lm-dataformat's own reader yields raw lines for `.jsonl.gz`, dictionaries for `.json.gz`, fails on `.jsonl.zst.tar` and
reads the eleventh file of an archive before the third; so these few lines read its archives.
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
