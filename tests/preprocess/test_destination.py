"""Where --output-prefix leads."""

import errno
import os
from pathlib import Path

import pytest

from everstep.steps.preprocess.destination import output_place
from tests.minio import MinIO


def test_a_file_is_created_once_in_a_folder_and_in_a_store(tmp_path: Path, s3: MinIO) -> None:
    for prefix in (str(tmp_path / "out/result"), f"{s3.new_prefix()}/result"):
        place, _ = output_place(prefix)
        assert (place.create("a", b"1"), place.create("a", b"2"), place.read("a")) == (True, False, b"1")


def test_a_file_is_created_in_a_file_system_without_hard_links_too(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def refuse(*_: object) -> None:
        raise PermissionError(errno.EPERM, os.strerror(errno.EPERM))

    monkeypatch.setattr(os, "link", refuse)
    place, _ = output_place(str(tmp_path / "result"))
    assert place.create("a", b"1")
    assert [(path.name, path.read_bytes()) for path in tmp_path.iterdir()] == [("a", b"1")]
