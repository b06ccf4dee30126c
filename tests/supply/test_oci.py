"""An OCI archive: its blobs have the digests that name them, and its layers say what an overlay's layers say."""

import hashlib
import json
import os
import stat
import tarfile
from pathlib import Path
from typing import Any

import pytest

from supply.oci import About, OciError, write_archive

ABOUT = About("everstep-test:1.2.3", 1_700_000_000, "1000:1000", "/tmp", ["everstep"], {"HOME": "/tmp"}, {"a": "b"})


@pytest.fixture
def layers(tmp_path: Path) -> list[Path]:
    """Two layers, the lowest first."""
    below, above = tmp_path / "below", tmp_path / "above"
    (below / "opt/app").mkdir(parents=True)
    (below / "opt/app/old").write_text("old")
    (below / "opt/app/run").write_text("run")
    (below / "opt/app/run").chmod(0o755)
    (below / "opt/link").symlink_to("app/run")
    os.link(below / "opt/app/run", below / "opt/same")
    (above / "opt/app").mkdir(parents=True)
    (above / "opt/app/new").write_text("new")
    (above / "secret").write_text("secret")
    return [below, above]


def blobs(path: Path) -> dict[str, bytes]:
    """The content of the archive's files by name."""
    with tarfile.open(path) as archive:
        return {member.name: archive.extractfile(member).read() for member in archive.getmembers()}  # type: ignore[union-attr]


def blob(content: dict[str, bytes], descriptor: dict[str, Any]) -> bytes:
    """The blob of that descriptor, which has the size that the descriptor says."""
    blob = content["blobs/sha256/" + descriptor["digest"].removeprefix("sha256:")]
    assert len(blob) == descriptor["size"]
    return blob


def unpack(tmp_path: Path, path: Path) -> tuple[dict[str, Any], list[list[tarfile.TarInfo]]]:
    """(The configuration, the members of each layer)."""
    content = blobs(path)
    (entry,) = json.loads(content["index.json"])["manifests"]
    manifest = json.loads(blob(content, entry))
    members = []
    for number, layer in enumerate(manifest["layers"]):
        file = tmp_path / f"{number}.tar.gz"
        file.write_bytes(blob(content, layer))
        with tarfile.open(file) as archive:
            members.append(archive.getmembers())
    return json.loads(blob(content, manifest["config"])), members


def test_each_blob_is_named_by_its_digest(tmp_path: Path, layers: list[Path]) -> None:
    write_archive(tmp_path / "image.tar", layers, ABOUT)
    blobs_by_name = {name: data for name, data in blobs(tmp_path / "image.tar").items() if name.startswith("blobs/")}
    assert len(blobs_by_name) == 4
    assert all(name.rpartition("/")[2] == hashlib.sha256(data).hexdigest() for name, data in blobs_by_name.items())


def test_layers_keep_modes_links_and_hard_links(tmp_path: Path, layers: list[Path]) -> None:
    write_archive(tmp_path / "image.tar", layers, ABOUT, {"secret"})
    config, (below, above) = unpack(tmp_path, tmp_path / "image.tar")
    of = {member.name: member for member in below}
    assert stat.S_IMODE(of["opt/app/run"].mode) == 0o755
    assert of["opt/link"].linkname == "app/run"
    assert of["opt/same"].islnk()
    assert all(member.mtime <= ABOUT.created for member in (*below, *above))
    assert [member.name for member in above] == ["opt", "opt/app", "opt/app/new"], "what is left out is not there"
    assert len(config["rootfs"]["diff_ids"]) == 2
    assert config["config"]["User"] == "1000:1000"
    assert config["config"]["Env"] == ["HOME=/tmp"]


def test_the_same_layers_give_the_same_archive(tmp_path: Path, layers: list[Path]) -> None:
    write_archive(tmp_path / "a.tar", layers, ABOUT)
    write_archive(tmp_path / "b.tar", layers, ABOUT)
    assert (tmp_path / "a.tar").read_bytes() == (tmp_path / "b.tar").read_bytes()


@pytest.mark.skipif(os.geteuid() != 0, reason="only root sets the attributes of an overlay")
def test_a_removed_file_and_a_replaced_folder_stay_so(tmp_path: Path, layers: list[Path]) -> None:
    os.mknod(layers[1] / "opt/app/old", stat.S_IFCHR, os.makedev(0, 0))
    os.setxattr(layers[1] / "opt", "trusted.overlay.opaque", b"y")
    write_archive(tmp_path / "image.tar", layers, ABOUT)
    _, (_, above) = unpack(tmp_path, tmp_path / "image.tar")
    assert {"opt/.wh..wh..opq", "opt/app/.wh.old"} <= {member.name for member in above}
    assert "opt/app/old" not in {member.name for member in above}


@pytest.mark.skipif(os.geteuid() != 0, reason="only root sets the attributes of an overlay")
def test_a_renamed_folder_that_no_archive_carries_is_refused(tmp_path: Path, layers: list[Path]) -> None:
    os.setxattr(layers[1] / "opt", "trusted.overlay.redirect", b"/srv")
    with pytest.raises(OciError, match=r"does not carry its attribute trusted\.overlay\.redirect"):
        write_archive(tmp_path / "image.tar", layers, ABOUT)
