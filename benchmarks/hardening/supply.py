"""What is installed and carried, and what pods may do: promises, and their proofs."""

import argparse
import subprocess
import sys
import tempfile
import venv
from collections.abc import Callable, Iterator
from pathlib import Path

from benchmarks.acceptance import Line
from tests.harness import ROOT

SUPPLY, FACE = "tests/supply/", "tests/face/"
LOCK, CONTAINERFILE, RIGHTS = f"{SUPPLY}test_lock.py", f"{FACE}test_containerfile.py", f"{FACE}test_rights.py"
PROVEN: dict[str, tuple[str, ...]] = {
    "supply: one version and hashes of all files for each package, no address": (
        f"{LOCK}::one_version", f"{LOCK}::another_file_in", f"{LOCK}::cuda_and_triton",
    ),
    "supply: constraints.txt and pyproject.toml agree; all that an image gets is in it": (
        f"{LOCK}::asks_for", f"{LOCK}::behind", f"{LOCK}::an_image_gets",
    ),
    "supply: a file with another hash is not installed; make, CI and images ask for hashes": (
        f"{LOCK}::only_with_its_hash", f"{LOCK}::make_and_ci", f"{CONTAINERFILE}::held_to_the_hashes",
    ),
    "supply: an image's base without a digest is refused": (
        f"{CONTAINERFILE}::without_a_digest", f"{CONTAINERFILE}::only_image_that_is_fetched",
    ),
    "supply: licences of what the images carry; one that nobody has judged is refused; developer tools are left out": (
        f"{SUPPLY}test_licences.py", f"{CONTAINERFILE}::developer_tools",
    ),
    "supply: a bill of materials for each image": (f"{SUPPLY}test_sbom.py",),
    "rights: steps that parse foreign data have neither pods nor Secrets; no account has more than its step needs": (
        f"{RIGHTS}::each_account", f"{RIGHTS}::is_made", f"{RIGHTS}::parse_what_others_wrote",
        f"{FACE}test_templates_command.py",
    ),
    "network: only pods of steps, jobs and Spark reach each other; on by default": (
        f"{RIGHTS}::reach_each_other", f"{FACE}test_chart.py::network_policy",
    ),
}  # fmt: skip
"""In the words of `acceptance.proven`."""
INSTALLED = "supply: an image's packages are installed by hash into an empty environment"


def install_image(_: argparse.Namespace) -> Iterator[Line]:
    """Install the image `preprocess`, without its code, as templates/Containerfile does (downloads 300 MB)."""
    with tempfile.TemporaryDirectory(prefix="everstep-accept-") as name:
        folder = Path(name)
        venv.create(folder / "new", with_pip=False)
        script = (
            "import tomllib; of = tomllib.load(open('pyproject.toml', 'rb'))['project']; "
            "print(*of['dependencies'], *of['optional-dependencies']['preprocess'], sep='\\n')"
        )
        listing = subprocess.run([sys.executable, "-c", script], cwd=ROOT, capture_output=True, text=True, check=True)
        (folder / "wanted").write_text(listing.stdout)
        pins = ["-c", "constraints.txt", "--build-constraint", "constraints.txt", "-r", folder / "wanted"]
        command = [sys.executable, "-m", "pip", "--python", folder / "new", "install", "--require-hashes", *pins]
        completed = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=False)
        count = len(list(folder.glob("new/lib/python3*/site-packages/*.dist-info")))
        outcome_text = (
            f"{count} packages" if completed.returncode == 0 else (completed.stderr.strip().splitlines() or ["?"])[-1]
        )
        yield Line(INSTALLED, "all, each by a hash", outcome_text, completed.returncode == 0 and count > 50)


MEASURED: dict[str, Callable[[argparse.Namespace], Iterator[Line]]] = {INSTALLED: install_image}
