"""Artifacts, addresses, archives and variables of the executor: what leaves a run's folder, or enters it."""

import argparse
import gzip
import io
import random
import tarfile
import tempfile
import time
from collections.abc import Callable, Iterator
from pathlib import Path

from benchmarks.acceptance import Line
from benchmarks.memory import forget_peak, peak_bytes
from everstep.runtime.workflow.artifacts.archives import DEFAULT_LIMITS, ArchiveError, untar
from tests.workflow.test_archives import GOOD_TAR, Place, good_zip

INSIDE, ARCHIVES, WIRE, SURROUNDINGS, SERVICES = (
    f"tests/workflow/test_{name}.py" for name in ("inside", "archives", "wire", "inherited", "services")
)
PROVEN: dict[str, tuple[str, ...]] = {
    "artifact keys with ../, also from a parameter: an error in Argo's words, nothing outside is touched": (
        f"{INSIDE}::key_that", f"{INSIDE}::for_a_file", "tests/workflow/test_golden.py::art-key",
    ),
    "subPath, claimName, files of volumes, inputs in volumes stay in their folder, links considered": (
        f"{INSIDE}::volume_stays", f"{INSIDE}::claims", f"{INSIDE}::input_artifact",
    ),
    "one containment check: random names, links, NUL, Unicode, lengths against a slow model": (
        f"{INSIDE}::no_name", f"{INSIDE}::changes_nothing",
    ),
    "of a pod's outputs only what the pod could see is taken; no pipe is waited for": (f"{INSIDE}::outputs_are",),
    "http: short, broken, garbage: the step ends in one line, the exit handler runs": (
        f"{WIRE}::whole", f"{WIRE}::token", f"{WIRE}::badly", f"{WIRE}::any_answer",
    ),
    "http: no header follows a redirect to another host; only http and https": (
        f"{WIRE}::redirect", f"{WIRE}::same_host", f"{WIRE}::addresses", f"{WIRE}::schemes",
    ),
    "http: a stop and a deadline end what comes drop by drop; no artifact takes more than half of the disk's room": (
        f"{WIRE}::drop_by_drop", f"{WIRE}::too_slowly", f"{WIRE}::left_on_the_disk",
    ),
    "s3: the launcher's keys go only to the endpoint that they were given for": (f"{SERVICES}::given_for",),
    "tar and zip: no member, link or mode leaves the folder": (
        f"{ARCHIVES}::leaves", f"{ARCHIVES}::leads_out", f"{ARCHIVES}::modes", f"{ARCHIVES}::links",
        f"{ARCHIVES}::bytes",
    ),
    "bombs end at their limit, which a person may raise": (
        f"{ARCHIVES}::bomb", f"{ARCHIVES}::pretends", f"{ARCHIVES}::allow_more",
    ),
    "pods get a named list of variables, --env adds; the store's only Everstep's own steps": (
        f"{SURROUNDINGS}::token", f"{SURROUNDINGS}::get", f"{SURROUNDINGS}::env", f"{SURROUNDINGS}::documentation",
    ),
    "Secrets as volumes: 0400 under 0700, and gone with their pod": (f"{SURROUNDINGS}::secret",),
    "terminal escapes of pods are text: live view, plain lines, logs, get": (
        f"{SURROUNDINGS}::say", f"{SURROUNDINGS}::acts",
    ),
}  # fmt: skip
"""Promise -> the tests that prove it, in the words of `acceptance.proven`."""

ARCHIVES_MADE_UP = 10_000
BOMB_BYTES = 3 << 30


def fuzz_archives(options: argparse.Namespace) -> Iterator[Line]:
    """Archives with bytes changed at random, as inputs with a mode for all members."""
    dice = random.Random(20)
    seeds = [({"tar": {}}, GOOD_TAR), ({"tar": {}}, _nested_archive()), ({"zip": {}}, good_zip())]
    escaped, traceback = 0, ""
    with tempfile.TemporaryDirectory() as folder:
        place = Place(Path(folder).resolve())
        before = place.outside()
        for number in range(ARCHIVES_MADE_UP):
            archive, seed = dice.choice(seeds)
            content = bytearray(seed)
            for _ in range(dice.randint(1, 12)):
                # Changes in the headers of a tar's members have the most effect.
                content[dice.randrange(min(len(content), 4096))] = dice.choice((dice.randrange(256), *b"./0127lLx\0"))
            packed = bytes(content) if "zip" in archive else gzip.compress(content, 1)
            try:
                place.check(place.load(packed, archive=archive), before)
            except AssertionError:
                escaped += 1
            except Exception as error:  # noqa: BLE001 - what came through is what is looked for
                traceback = f"number {number}: {error!r}"
    outcome_text = f"{escaped} of {ARCHIVES_MADE_UP} left the folder{f'; {traceback}' if traceback else ''}"
    yield Line(f"{ARCHIVES_MADE_UP} made-up tars and zips", "unpacked inside, or one line", outcome_text,
               not escaped and not traceback)  # fmt: skip


def _nested_archive() -> bytes:
    """A tar with every kind of member."""
    archive = io.BytesIO()
    with tarfile.open(fileobj=archive, mode="w") as packed:
        for name, kind, target in (
            ("top", tarfile.DIRTYPE, ""), ("top/f", tarfile.REGTYPE, ""), ("top/l", tarfile.SYMTYPE, "f"),
            ("top/h", tarfile.LNKTYPE, "top/f"), ("top/deep", tarfile.SYMTYPE, "../top/f"), ("p", tarfile.FIFOTYPE, ""),
            ("top/" + "long" * 40, tarfile.REGTYPE, ""),
        ):  # fmt: skip
            member = tarfile.TarInfo(name)
            member.type, member.linkname, member.mode = kind, target, 0o755
            packed.addfile(member)
    return archive.getvalue()


def bomb(options: argparse.Namespace) -> Iterator[Line]:
    """Unpack 3 GiB of zeros from 3 MB."""
    with tempfile.TemporaryDirectory() as folder:
        packed, out = Path(folder, "bomb"), Path(folder, "out")
        member = tarfile.TarInfo("x")
        member.size = BOMB_BYTES
        with gzip.open(packed, "wb", compresslevel=6) as stream:
            stream.write(member.tobuf())
            for _ in range(BOMB_BYTES >> 20):
                stream.write(bytes(1 << 20))
        size = packed.stat().st_size
        forget_peak()
        before = peak_bytes()
        began, is_refused = time.monotonic(), False
        try:
            untar(packed, out, DEFAULT_LIMITS)
        except ArchiveError:
            is_refused = True
        took = time.monotonic() - began
        bytes_taken = sum(path.stat().st_size for path in out.rglob("*"))
        more = (peak_bytes() - before) / 2**20
    allowed = max(DEFAULT_LIMITS.unpacked_bytes, DEFAULT_LIMITS.ratio * size)
    outcome_text = (
        f"{'refused' if is_refused else 'unpacked'} after {bytes_taken / 2**20:.0f} MiB, {took:.1f} s, "
        f"{more:.0f} MiB of memory"
    )
    yield Line(f"a tar of {size / 1e6:.0f} MB that unpacks to 3 GiB",
               f"refused after at most {allowed / 2**20:.0f} MiB, with at most 100 MiB of memory", outcome_text,
               is_refused and bytes_taken <= allowed and more <= 100)  # fmt: skip


MEASURED: dict[str, Callable[[argparse.Namespace], Iterator[Line]]] = {
    "made-up tars and zips": fuzz_archives,
    "a tar that unpacks to 3 GiB": bomb,
}
