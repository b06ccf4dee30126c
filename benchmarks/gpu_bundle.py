"""`make gpu-bundle`: build/gpu, which has what `accept-gpu` needs on a bare Linux with Python 3.12 and torch.

    build/gpu/run [WORD ...] [--minutes M]      # there; needs no network, no pip, and none of our other packages

Files of git's HEAD, and the wheels of the packages that these lines import, as constraints.txt locks them. Copy the
folder, or name it to what copies a working tree: git ignores build/.
"""

import re
import shutil
import subprocess
import sys
from collections.abc import Iterable
from pathlib import Path

from tests.harness import ROOT

FOLDERS = ("benchmarks", "everstep", "runtime", "steps", "pipelines", "tests", "pyproject.toml")
PACKAGES = (
    "nvidia-ml-py", "msgspec", "xxhash", "psutil", "rich", "markdown-it-py", "mdurl", "pygments", "numpy", "packaging",
    "pytest", "iniconfig", "pluggy", "aiohttp", "aiohappyeyeballs", "aiosignal", "attrs", "frozenlist", "multidict",
    "propcache", "yarl", "idna", "typing-extensions", "lark", "pyyaml",
)  # fmt: skip
"""What the lines import, and what that needs. torch brings the rest."""
PLATFORMS = ("manylinux_2_28_x86_64", "manylinux_2_17_x86_64")
MOST_BYTES = 60_000_000
RUN = """#!/bin/sh
# Prints what is promised of GPUs and what this machine does. It needs Python 3.12 with torch; $PYTHON may name it.
cd "$(dirname "$0")" || exit 1
python=${PYTHON:-python3}
"$python" -c 'import importlib.util as i, sys; sys.exit(sys.version_info[:2] != (3, 12) or not i.find_spec("torch"))' ||
    { echo "run: $python is not Python 3.12 with torch; name another by PYTHON=" >&2; exit 2; }
rm -rf site
for wheel in wheels/*.whl; do "$python" -m zipfile -e "$wheel" site || exit 1; done
export PYTHONPATH="$PWD/site:$PWD" PYTHONUNBUFFERED=1
exec "$python" -m benchmarks.accept_gpu "$@"
"""


def locked(constraints: str, names: Iterable[str]) -> str:
    """The entries of these packages, with their hashes. Raises ValueError for one that has none."""
    entries = []
    for name in names:
        entry = re.search(rf"^{re.escape(name)}==(?:.*\\\n)*.*\n", constraints, re.M)
        if entry is None:
            raise ValueError(f"constraints.txt does not lock {name}")
        entries.append(entry[0])
    return "".join(entries)


def bundle(folder: Path) -> int:
    """Make the folder anew; returns its bytes. Raises CalledProcessError."""
    shutil.rmtree(folder, ignore_errors=True)
    (folder / "wheels").mkdir(parents=True)
    files = subprocess.run(["git", "archive", "HEAD", *FOLDERS], cwd=ROOT, stdout=subprocess.PIPE, check=True)
    subprocess.run(["tar", "-x", "-C", folder], input=files.stdout, check=True)
    (folder / "tests" / "__init__.py").touch()  # Else a package of that name in site-packages would be found first.
    versions = folder / "versions.txt"
    versions.write_text(locked((ROOT / "constraints.txt").read_text(), PACKAGES))
    command = [sys.executable, "-m", "pip", "download", "-q", "--require-hashes", "--only-binary=:all:", "--no-deps"]
    command += ["--python-version", "3.12", "--dest", f"{folder / 'wheels'}", "-r", f"{versions}"]
    subprocess.run([*command, *(f"--platform={name}" for name in PLATFORMS)], check=True)
    run = folder / "run"
    run.write_text(RUN)
    run.chmod(0o755)
    return sum(path.stat().st_size for path in folder.rglob("*") if path.is_file() and not path.is_symlink())


def main() -> None:
    """Make build/gpu. Exit code 1 if it is too large to be brought along."""
    folder = ROOT / "build" / "gpu"
    size = bundle(folder)
    print(f"{folder}: {size / 1e6:.1f} MB, at most {MOST_BYTES / 1e6:.0f}; on the machine with the GPU: build/gpu/run")
    sys.exit(size > MOST_BYTES)


if __name__ == "__main__":
    main()
