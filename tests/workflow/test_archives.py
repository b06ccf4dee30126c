"""Archives that somebody made up: no member, link or mode leaves the folder, and none comes to more than its limits."""

import gzip
import io
import os
import stat
import struct
import tarfile
import tempfile
import zipfile
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as some

from everstep.runtime.workflow.artifacts import archives
from everstep.runtime.workflow.artifacts.archives import DEFAULT_LIMITS, ArchiveError, UnpackLimits, untar, unzip
from everstep.runtime.workflow.artifacts.artifacts import load
from everstep.runtime.workflow.manifest.library import Library
from tests.workflow.test_inside import one_line

SMALL = UnpackLimits(unpacked_bytes=100_000, ratio=10, members=50, header_bytes=5_000)
KINDS = {
    "file": tarfile.REGTYPE, "folder": tarfile.DIRTYPE, "symlink": tarfile.SYMTYPE, "hard link": tarfile.LNKTYPE,
    "pipe": tarfile.FIFOTYPE, "device": tarfile.CHRTYPE,
}  # fmt: skip
NAMES = some.sampled_from(
    ["a", "b", "a/b", "a/b/c", "./a", ".", "..", "../victim", "a/../../victim/keep", "/etc/planted", "a/./b", "b/keep",
     "a/keep", "x" * 300, "é", "\udc80", "a/l/m", "l/keep", "l"]
)  # fmt: skip
TARGETS = some.one_of(
    NAMES, some.sampled_from(["../..", "../victim/keep", "/etc/passwd", "a/../..", "../a", "b/..", "../top/a"])
)
MEMBERS = some.lists(
    some.tuples(some.sampled_from([*KINDS]), NAMES, TARGETS, some.sampled_from([0, 0o644, 0o4777, 0o7777])), max_size=8
)


def tarball(members: list[Any]) -> bytes:
    """A gzipped tar of (kind, name, target, mode)."""
    buffer = io.BytesIO()
    with tarfile.open(fileobj=buffer, mode="w:gz", errors="surrogateescape") as packed:
        for kind, name, target, mode in members:
            member = tarfile.TarInfo(name)
            member.type, member.linkname, member.mode = KINDS[kind], target, mode
            member.size = 4 if kind == "file" else 0
            packed.addfile(member, io.BytesIO(b"mine"))
    return buffer.getvalue()


class Place:
    """A folder to unpack in, beside a victim."""

    def __init__(self, top: Path) -> None:
        self.top = top
        self.victim = top / "victim"
        self.victim.mkdir()
        (self.victim / "keep").write_text("kept")
        (self.victim / "keep").chmod(0o640)
        self.archive = top / "archive"

    def outside(self) -> list[tuple[str, int, str]]:
        """Everything but what was unpacked."""
        paths = [path for path in self.top.rglob("*") if path.relative_to(self.top).parts[0] not in ("in", "archive")]
        return [(str(path), path.lstat().st_mode, path.read_text() if path.is_file() else "") for path in sorted(paths)]

    def load(self, content: bytes, **more: Any) -> Path | None:
        """What became of it as an input artifact; None where it was refused in one line."""
        self.archive.write_bytes(content)
        into = self.top / "in" / "in"
        entry = {"name": "a", "s3": {"key": "archive"}, "mode": 0o777, "recurseMode": True, **more}
        problem = one_line(lambda: load(entry, self.top, into, Library(), SMALL))
        return None if problem else into

    def check(self, into: Path | None, before: Any) -> None:
        """Nothing changed outside, and no link that leads out was taken."""
        assert self.outside() == before
        for path in [into, *into.rglob("*")] if into else []:
            assert into
            assert Path(os.path.realpath(path)).is_relative_to(into), f"{path} -> {os.path.realpath(path)}"
            assert stat.S_ISLNK(path.lstat().st_mode) or path.is_file() or path.is_dir()
        assert into or not [*(self.top / "in").glob("*")], "something of it stays"


@given(MEMBERS, some.booleans())
def test_no_member_link_or_mode_of_a_tar_leaves_its_folder(members: list[Any], flat: bool) -> None:
    with tempfile.TemporaryDirectory() as folder:
        place = Place(Path(folder).resolve())
        before = place.outside()
        under = members if flat else [(kind, f"top/{name}", target, mode) for kind, name, target, mode in members]
        place.check(place.load(tarball(under), archive={"tar": {}}), before)


@given(some.lists(some.tuples(NAMES, some.binary(max_size=50)), max_size=6, unique_by=lambda member: member[0]))
def test_no_member_of_a_zip_leaves_its_folder(members: list[tuple[str, bytes]]) -> None:
    buffer = io.BytesIO()
    with zipfile.ZipFile(buffer, "w", zipfile.ZIP_DEFLATED) as packed:
        for name, content in members:
            if "\udc80" not in name:
                entry = zipfile.ZipInfo(name)
                entry.external_attr = (stat.S_IFLNK | 0o777) << 16
                packed.writestr(entry, content)
    with tempfile.TemporaryDirectory() as folder:
        place = Place(Path(folder).resolve())
        before = place.outside()
        place.check(place.load(buffer.getvalue(), archive={"zip": {}}), before)


GOOD_TAR = gzip.decompress(
    tarball([("folder", "d", "", 0o755), ("file", "d/f", "", 0o644), ("symlink", "d/l", "f", 0)])
)


def good_zip() -> bytes:
    """A zip of two files."""
    buffer = io.BytesIO()
    with zipfile.ZipFile(buffer, "w", zipfile.ZIP_DEFLATED) as packed:
        packed.writestr("d/f", "mine" * 20)
        packed.writestr("d/g", "more" * 20)
    return buffer.getvalue()


FLIPS = some.lists(some.tuples(some.integers(0, 4000), some.integers(0, 255)), min_size=1, max_size=12)


@settings(max_examples=200)
@given(FLIPS, some.sampled_from(["tar", "gz", "zip"]), some.integers(0, 5000))
def test_bytes_that_somebody_changed_are_unpacked_inside_or_refused_in_one_line(
    flips: list[tuple[int, int]], kind: str, cut: int
) -> None:
    content = bytearray({"tar": GOOD_TAR, "gz": gzip.compress(GOOD_TAR), "zip": good_zip()}[kind])
    for at, value in flips:
        content[at % len(content)] = value
    changed = bytes(content[:cut] if cut < len(content) and cut % 3 == 0 else content)
    archive = {"archive": {"zip": {}}} if kind == "zip" else {"archive": {"tar": {}}}
    with tempfile.TemporaryDirectory() as folder:
        place = Place(Path(folder).resolve())
        before = place.outside()
        place.check(place.load(gzip.compress(changed) if kind == "tar" else changed, **archive), before)


@given(some.binary(max_size=300))
def test_any_bytes_are_unpacked_inside_or_refused_in_one_line(content: bytes) -> None:
    with tempfile.TemporaryDirectory() as folder:
        place = Place(Path(folder).resolve())
        before = place.outside()
        for archive in ({"tar": {}}, {"zip": {}}):
            place.check(place.load(content, archive=archive), before)
            assert not (place.top / "in" / "in").exists()


REFUSED = {
    "climbs": ([("file", "../victim/keep", "", 0o644)], "illegal file path: ../victim/keep"),
    "follows a link": ([("symlink", "l", "../victim", 0), ("file", "l/keep", "", 0)], "illegal symlink target: l -> "),
    "is an absolute link": ([("file", "f", "", 0), ("symlink", "l", "/etc/f", 0)], "illegal symlink target: l -> "),
    "links hard": ([("hard link", "l", "../victim/keep", 0)], "illegal link target: l -> ../victim/keep"),
    "links together": (
        [("folder", "x/y", "", 0o755), ("folder", "t", "", 0o755), ("symlink", "x/y/s", "../../t", 0),
         ("symlink", "x/y/s/up", "../../k", 0)], "illegal symlink target: up -> ../../k",
    ),
    "changes what a link leads to": (
        [("file", "f", "", 0), ("symlink", "a", "b/../f", 0), ("folder", "c/d", "", 0o755), ("symlink", "b", "c", 0),
         ("symlink", "z", "b/../b/../../victim", 0)], "illegal symlink target: z",
    ),
    "leads out when it has its name": (
        [("file", "top/f", "", 0), ("symlink", "top/l", "../top/f", 0)], "illegal symlink target: l -> ../top/f",
    ),
    "is one link": ([("symlink", "x", "./victim", 0)], "illegal symlink target: x -> ./victim"),
}  # fmt: skip


@pytest.mark.parametrize("what", REFUSED)
def test_a_tar_that_leads_out_is_refused_in_argo_s_words(what: str, tmp_path: Path) -> None:
    members, expected_text = REFUSED[what]
    place = Place(tmp_path)
    place.archive.write_bytes(tarball(members))
    with pytest.raises(ArchiveError, match="^" + expected_text.replace(".", r"\.")):
        untar(place.archive, tmp_path / "out")
    assert (place.victim / "keep").read_text() == "kept"


def test_modes_are_set_on_no_file_that_a_link_leads_to(tmp_path: Path) -> None:
    place = Place(tmp_path)
    into = place.top / "in" / "in"
    (place.top / "folder").mkdir()
    os.symlink(place.victim / "keep", place.top / "folder" / "link")
    members = [("file", "d/f", "", 0o644), ("symlink", "d/l", "f", 0)]
    assert place.load(tarball(members)) == into
    assert stat.S_IMODE((into / "f").stat().st_mode) == 0o777
    archives.pack_tar(place.top / "folder", "folder", tmp_path / "packed", None)
    with pytest.raises(ArchiveError, match="illegal symlink target: link -> "):
        untar(tmp_path / "packed", tmp_path / "out")
    assert stat.S_IMODE((place.victim / "keep").stat().st_mode) == 0o640


def zeros(size: int, members: int = 1) -> bytes:
    """A tar of members of so many bytes, which are almost none when they are packed."""
    buffer = io.BytesIO()
    with gzip.open(buffer, "wb") as stream:
        for number in range(members):
            member = tarfile.TarInfo(f"d/{number}")
            member.size = size
            stream.write(member.tobuf())
            stream.write(bytes(-(-size // 512) * 512))
        stream.write(bytes(1024))
    return buffer.getvalue()


def header(kind: bytes, size: int) -> bytes:
    """A tar that begins with a name or extended header of so many bytes."""
    member = tarfile.TarInfo("long")
    member.type, member.size = kind, size
    return gzip.compress(member.tobuf() + bytes(size))


def zip_of(size: int) -> bytes:
    """A zip of one file of zeros."""
    buffer = io.BytesIO()
    with zipfile.ZipFile(buffer, "w", zipfile.ZIP_DEFLATED) as packed:
        packed.writestr("x", bytes(size))
    return buffer.getvalue()


BOMBS = {
    "bytes": (zeros(2_000_000), "unpack to more than"),
    "members": (zeros(0, 60), "unpack to more than"),
    "folders": (tarball([("file", "a/" * 60 + "f", "", 0)]), "unpack to more than"),
    "a name": (header(tarfile.GNUTYPE_LONGNAME, 10_000), "a name of 10000 bytes; at most 5000 are read"),
    "an extended header": (header(tarfile.XHDTYPE, 10_000), "a name of 10000 bytes; at most 5000 are read"),
    "names of names": (gzip.compress(header(tarfile.GNUTYPE_LONGNAME, 0) and b"".join(
        gzip.decompress(header(tarfile.GNUTYPE_LONGNAME, 0)) for _ in range(190))), "cannot be unpacked"),
    "bytes of a zip": (zip_of(2_000_000), "unpack to more than"),
}  # fmt: skip


@pytest.mark.parametrize("what", BOMBS)
def test_a_bomb_is_refused_at_its_limit_and_nothing_of_it_stays(what: str, tmp_path: Path) -> None:
    content, expected_text = BOMBS[what]
    place = Place(tmp_path)
    place.archive.write_bytes(content)
    unpack = unzip if "zip" in what else untar
    with pytest.raises(ArchiveError, match=expected_text):
        unpack(place.archive, tmp_path / "out", SMALL)
    assert sum(path.stat().st_size for path in (tmp_path / "out").rglob("*") if path.is_file()) <= 200_000
    before = place.outside()
    place.check(place.load(content, archive={"zip": {}} if "zip" in what else {"tar": {}}), before)


def test_what_a_sparse_file_pretends_to_be_counts(tmp_path: Path) -> None:
    member = tarfile.TarInfo("sparse")
    member.type, member.size = tarfile.GNUTYPE_SPARSE, 0
    block = bytearray(member.tobuf())
    block[483:495] = b"%011o\0" % 10**9  # Its real size (GNU tar's manual, "Storing Sparse Files").
    block[148:156] = b" " * 8
    block[148:156] = b"%06o\0 " % sum(block)
    (tmp_path / "t").write_bytes(gzip.compress(bytes(block) + bytes(1024)))
    with pytest.raises(ArchiveError, match="unpack to more than"):
        untar(tmp_path / "t", tmp_path / "out", SMALL)


def test_an_honest_archive_is_let_through_and_a_person_may_allow_more(tmp_path: Path) -> None:
    (tmp_path / "t").write_bytes(zeros(2_000_000))
    allowed = UnpackLimits.from_environment({archives.UNPACKED_VARIABLE: "3000000"})
    assert (untar(tmp_path / "t", tmp_path / "out", allowed) / "0").stat().st_size == 2_000_000
    assert UnpackLimits.from_environment({}) == DEFAULT_LIMITS
    with pytest.raises(ValueError, match="EVERSTEP_UNPACKED_BYTES=much: give a whole number of bytes"):
        UnpackLimits.from_environment({archives.UNPACKED_VARIABLE: "much"})


def test_links_in_a_folder_are_zipped_only_where_they_stay_in_it(tmp_path: Path) -> None:
    place = Place(tmp_path)
    source_folder = tmp_path / "made"
    (source_folder / "sub").mkdir(parents=True)
    (source_folder / "f").write_text("mine")
    for name, target in (("in", "f"), ("out", "../victim/keep"), ("around", ".")):
        (source_folder / name).symlink_to(target)
    os.mkfifo(source_folder / "sub" / "pipe")
    archives.pack_zip(source_folder, tmp_path / "z", "")
    with zipfile.ZipFile(tmp_path / "z") as packed:
        contents = {name: packed.read(name) for name in packed.namelist()}
    assert contents == {
        "made/f": b"mine",
        "made/in": b"mine",
        "made/out": b"",
        "made/around": b"",
        "made/sub/pipe": b"",
    }
    archives.pack_tar(source_folder, "made", tmp_path / "t", None)
    with tarfile.open(tmp_path / "t") as packed:
        assert "made/sub/pipe" not in packed.getnames()
    assert place.victim.exists()


def test_an_encrypted_zip_is_one_line(tmp_path: Path) -> None:
    content = bytearray(good_zip())
    for mark, at in ((b"PK\x03\x04", 6), (b"PK\x01\x02", 8)):
        place = content.find(mark)
        while place >= 0:
            (flags,) = struct.unpack_from("<H", content, place + at)
            struct.pack_into("<H", content, place + at, flags | 1)
            place = content.find(mark, place + 1)
    (tmp_path / "z").write_bytes(content)
    with pytest.raises(ArchiveError, match=r"^cannot be unpacked: .*password"):
        unzip(tmp_path / "z", tmp_path / "out")
