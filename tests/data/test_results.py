"""What a script names as its results: kept whole, replaced whole, refused by name."""

from pathlib import Path

import numpy as np
import pytest

import everstep
from everstep.runtime.data.results import ResultsError, read_results, write_results
from everstep.runtime.store import DirectoryStore, Store, StoreError


@pytest.fixture
def store(tmp_path: Path) -> Store:
    return DirectoryStore(tmp_path / "store")


def test_values_and_copies_of_files_and_folders_are_kept(store: Store, tmp_path: Path) -> None:
    (tmp_path / "model/deep").mkdir(parents=True)
    (tmp_path / "model/deep/weights.bin").write_bytes(b"w")
    (tmp_path / "a picture.png").write_bytes(b"p")
    write_results(store, "j", {"accuracy": np.float32(0.5), "words": "yes", "broken": float("nan")})
    write_results(store, "j", {"model": tmp_path / "model", "picture": tmp_path / "a picture.png"})
    results = read_results(store, "j")
    assert {name: results[name] for name in ("accuracy", "words", "broken")} == {
        "accuracy": 0.5, "words": "yes", "broken": "nan",
    }  # fmt: skip
    assert Path(str(results["model"]), "deep/weights.bin").read_bytes() == b"w"
    assert Path(str(results["picture"])).read_bytes() == b"p"
    assert Path(str(results["picture"])).name == "a_picture.png"


def test_a_newer_copy_takes_the_place_of_the_older_one(store: Store, tmp_path: Path) -> None:
    file = tmp_path / "m.bin"
    for content in (b"1", b"2"):
        file.write_bytes(content)
        write_results(store, "j", {"model": file, "model2": file})
    assert Path(str(read_results(store, "j")["model"])).read_bytes() == b"2"
    assert len(list(store.list("jobs/j/results/"))) == 2
    write_results(store, "j", {"model": 1})
    assert len(list(store.list("jobs/j/results/"))) == 1


@pytest.mark.parametrize(
    ("value", "expected_text"),
    [
        ([1, 2], "result x: a list; give a text, a number"),
        (np.zeros(3), "result x: a ndarray; give"),
        (Path("no/such"), "result x: no/such does not exist"),
        ("x" * 70_000, "at most 65536 are kept"),
    ],
)
def test_what_cannot_be_kept_is_refused_by_name_and_nothing_changes(
    value: object, expected_text: str, store: Store, tmp_path: Path
) -> None:
    write_results(store, "j", {"before": 1})
    with pytest.raises(ResultsError, match=expected_text):
        write_results(store, "j", {"x": value})  # type: ignore[dict-item]
    assert read_results(store, "j") == {"before": 1}
    (tmp_path / "empty").mkdir()
    with pytest.raises(ResultsError, match="has no files"):
        write_results(store, "j", {"x": tmp_path / "empty"})


def test_a_value_may_have_any_name_and_a_file_one_that_a_key_may_have(store: Store, tmp_path: Path) -> None:
    assert write_results(store, "j", {"pr\u00e9cision": 0.9, "a/b": 1, "..": 2})["pr\u00e9cision"] == 0.9
    file = tmp_path / "m.bin"
    file.write_bytes(b"m")
    for name in ("pr\u00e9cision", "a/b", ".."):
        with pytest.raises(ResultsError, match=f"result {name}: a Path needs a name of letters, digits"):
            write_results(store, "j", {"model": file, name: file})
    assert not list(store.list("jobs/j/results/"))


def test_a_link_out_of_a_folder_is_not_followed(store: Store, tmp_path: Path) -> None:
    (tmp_path / "out").mkdir()
    (tmp_path / "secret").write_text("s")
    (tmp_path / "out/link").symlink_to(tmp_path / "secret")
    with pytest.raises(ResultsError, match="has no files"):
        write_results(store, "j", {"x": tmp_path / "out"})


def test_damaged_results_are_told_in_one_line(store: Store) -> None:
    store.put("jobs/j/results.json", b"[")
    with pytest.raises(StoreError, match=r"results\.json: not the results of a job"):
        read_results(store, "j")


def test_only_rank_0_counts_and_a_script_by_itself_is_told_where_they_would_be(
    store: Store, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.delenv("EVERSTEP_STORE", raising=False)
    everstep.results(a=1)
    assert "EVERSTEP_STORE and EVERSTEP_JOB" in capsys.readouterr().err
    monkeypatch.setenv("EVERSTEP_STORE", store.uri)
    monkeypatch.setenv("EVERSTEP_JOB", "j")
    everstep.results(a=1)
    monkeypatch.setenv("RANK", "1")
    everstep.results(a=2)
    assert read_results(store, "j") == {"a": 1}
