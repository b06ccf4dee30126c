"""Finished data appears whole or not at all."""

import fcntl
import os
from pathlib import Path

import pytest

from everstep.runtime.data import data_folder
from everstep.runtime.store import fetch_folder
from tests.minio import MinIO


def test_a_committed_draft_is_found_with_its_files(tmp_path: Path) -> None:
    store = str(tmp_path)
    with data_folder.draft(store, "corpora/abc", "corpus.json") as draft:
        (draft.folder / "text").write_text("x")
        assert data_folder.find_manifest(store, "corpora/abc", "corpus.json") is None
        draft.commit({"documents": 1})
    assert data_folder.find_manifest(store, "corpora/abc", "corpus.json") == {"documents": 1}
    assert (tmp_path / "corpora/abc/text").read_text() == "x"
    assert [path.name for path in (tmp_path / "corpora").iterdir()] == ["abc"]


def fail_while_writing(store: Path) -> None:
    with data_folder.draft(str(store), "corpora/abc", "corpus.json") as draft:
        (draft.folder / "text").write_text("x")
        raise RuntimeError("full")


def test_a_draft_that_fails_leaves_nothing(tmp_path: Path) -> None:
    with pytest.raises(RuntimeError, match="full"):
        fail_while_writing(tmp_path)
    assert not list((tmp_path / "corpora").iterdir())


def test_the_draft_of_a_dead_writer_is_removed_and_that_of_a_living_one_kept(tmp_path: Path) -> None:
    (tmp_path / "corpora/~draft-dead-1").mkdir(parents=True)
    living = tmp_path / "corpora/~draft-living-2"
    living.mkdir()
    lock = os.open(living, os.O_RDONLY)
    fcntl.flock(lock, fcntl.LOCK_EX)
    with data_folder.draft(str(tmp_path), "corpora/abc", "corpus.json"):
        pass
    os.close(lock)
    assert [path.name for path in (tmp_path / "corpora").iterdir()] == [living.name]


def test_two_writers_of_one_folder_have_drafts_of_their_own(tmp_path: Path) -> None:
    """Also where their process ids are the same, as those of pods often are."""
    with (
        data_folder.draft(str(tmp_path), "corpora/abc", "corpus.json") as one,
        data_folder.draft(str(tmp_path), "corpora/abc", "corpus.json") as other,
    ):
        assert one.folder.is_dir()
        assert other.folder.is_dir()
        assert one.folder != other.folder


def test_a_folder_without_its_manifest_is_finished_by_the_next_writer(tmp_path: Path) -> None:
    store = str(tmp_path)
    for expected_facts in (None, {"documents": 1}):
        with data_folder.draft(store, "corpora/abc", "corpus.json") as draft:
            (draft.folder / "text").write_text("x")
            draft.commit({"documents": 1})
        if expected_facts is None:
            (tmp_path / "corpora/abc/corpus.json").unlink()
    assert data_folder.find_manifest(store, "corpora/abc", "corpus.json") == expected_facts


def test_a_draft_for_s3_is_uploaded_and_becomes_this_machines_copy(
    s3: MinIO, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("EVERSTEP_CACHE", str(tmp_path / "first"))
    store = s3.new_prefix()
    with data_folder.draft(store, "corpora/abc", "corpus.json") as draft:
        (draft.folder / "train").mkdir()
        (draft.folder / "train/text").write_text("x")
        assert data_folder.find_manifest(store, "corpora/abc", "corpus.json") is None
        draft.commit({"documents": 1})
    assert data_folder.find_manifest(store, "corpora/abc", "corpus.json") == {"documents": 1}
    uri = data_folder.data_uri(store, "corpora/abc")
    assert uri == f"{store}/corpora/abc"
    own = fetch_folder(uri, "corpus.json")
    assert own.parent.parent == tmp_path / "first"
    monkeypatch.setenv("EVERSTEP_CACHE", str(tmp_path / "second"))
    fetched = fetch_folder(uri, "corpus.json")
    for folder in (own, fetched):
        contents = {str(path.relative_to(folder)): path.read_text() for path in folder.rglob("*") if path.is_file()}
        assert contents == {"train/text": "x", "corpus.json": '{\n "documents": 1\n}\n'}


def test_a_draft_for_s3_that_fails_leaves_no_manifest_and_no_draft(
    s3: MinIO, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("EVERSTEP_CACHE", str(tmp_path))
    store = s3.new_prefix()

    def commit_what_no_store_takes() -> None:
        with data_folder.draft(store, "corpora/abc", "corpus.json") as draft:
            (draft.folder / "a").write_text("x")
            (draft.folder / "no key").write_text("x")
            draft.commit({"documents": 1})

    with pytest.raises(ValueError, match="not a key"):
        commit_what_no_store_takes()
    assert data_folder.find_manifest(store, "corpora/abc", "corpus.json") is None
    assert not list(tmp_path.rglob("~draft*"))
