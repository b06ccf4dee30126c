"""The launcher's variables that pods inherit: `INHERITED_GROUPS`, and those that `--env` adds. Nothing else decides it.

On a cluster a pod has what its template says and nothing of the person who submitted it: no token of Argo, a cloud or a
package index. Here pods are programs of this machine and need what says how to run on it. `isolation_page` makes
docs/pod-isolation.md of it.
"""

import re
from collections.abc import Iterable, Mapping, Sequence
from fnmatch import translate
from functools import cache
from typing import NamedTuple

from everstep.runtime.net.token import TOKEN_VARIABLE
from everstep.runtime.platform import POD_VARIABLE
from everstep.runtime.store.s3_settings import ACCESS_KEY, CA_FILES, ENDPOINTS, REGIONS, SECRET_KEY, TOKEN


class VariableGroup(NamedTuple):
    """Variables of one kind. A `*` matches any characters."""

    names: tuple[str, ...]
    why: str


INHERITED_GROUPS = (
    VariableGroup(("PATH", "HOME", "USER", "LOGNAME", "SHELL", "TMPDIR", "TZ", "LANG", "LANGUAGE", "LC_*", "TERM",
               "XDG_CACHE_HOME", "XDG_RUNTIME_DIR"),
              "programs find their parts and folders, and write in the user's language"),
    VariableGroup(("PYTHON*", "VIRTUAL_ENV", "CONDA_PREFIX", "LD_LIBRARY_PATH", "LD_PRELOAD", "JAVA_HOME",
               "JDK_JAVA_OPTIONS", "SPARK_HOME", "SPARK_CONF_DIR", "SPARK_LOCAL_*"),
              "Python, Java and Spark are this machine's"),
    VariableGroup(("OMP_*", "KMP_*", "GOMP_*", "MKL_*", "OPENBLAS_*", "NUMEXPR_*", "RAYON_*", "TOKENIZERS_PARALLELISM",
               "MALLOC_*"),
              "threads and memory"),
    VariableGroup(("CUDA_*", "NVIDIA_VISIBLE_DEVICES", "NVIDIA_DRIVER_CAPABILITIES", "NVIDIA_TF32_OVERRIDE",
               "HIP_*", "ROCR_*", "NCCL_*", "GLOO_*", "UCX_*", "FI_*", "TORCH_*", "PYTORCH_*",
               "TORCHINDUCTOR_*", "TRITON_*", "CUBLAS_*", "XLA_*", "LOGLEVEL"),
              "devices, and how libraries use and reach them"),
    VariableGroup(("HF_HOME", "HF_HUB_CACHE", "HF_HUB_OFFLINE", "HF_DATASETS_*", "HF_ENDPOINT", "TRANSFORMERS_*"),
              "where this machine keeps models (not HF_TOKEN)"),
    VariableGroup(("http_proxy", "https_proxy", "no_proxy", "all_proxy", "HTTP_PROXY", "HTTPS_PROXY", "NO_PROXY",
               "ALL_PROXY", "SSL_CERT_FILE", "SSL_CERT_DIR", "REQUESTS_CA_BUNDLE", "CURL_CA_BUNDLE"),
              "proxies and trusted certificates"),
    VariableGroup(("EVERSTEP_*",),
              f"Everstep's own settings (not {POD_VARIABLE} and {TOKEN_VARIABLE}: those of a launcher that "
              "runs in a pod are about that pod)"),
)  # fmt: skip
NEVER_INHERITED = (POD_VARIABLE, TOKEN_VARIABLE)
STORE_VARIABLES = VariableGroup(
    tuple(dict.fromkeys((*ENDPOINTS, ACCESS_KEY, SECRET_KEY, TOKEN, *REGIONS, *CA_FILES))),
    "the store and its keys, only for Everstep's own steps (containers with the command `python -m "
    "everstep.steps.NAME`) and those of `everstep.step` (the main container of a template with a step's "
    "label), as on Argo only these get the Secret",
)
_OWN_STEP = re.compile(r"everstep\.steps\.[a-z]+")


def inherited_variables(
    environment: Mapping[str, str], more: Iterable[str] = (), command: Sequence[str] = (), *, is_step: bool = False
) -> dict[str, str]:
    """The variables that a container with that command inherits. `more`: names or patterns from `--env`. `is_step`: its
    template has the label of a step."""
    patterns = [name for kind in INHERITED_GROUPS for name in kind.names]
    patterns += STORE_VARIABLES.names if is_step or is_own_step(command) else ()
    variables = {
        name: environment[name] for name in matching_names(environment, patterns) if name not in NEVER_INHERITED
    }
    return variables | {name: environment[name] for name in matching_names(environment, more)}


def is_own_step(command: Sequence[str]) -> bool:
    """Whether the command runs one of Everstep's own steps."""
    return len(command) > 2 and tuple(command[:2]) == ("python", "-m") and bool(_OWN_STEP.fullmatch(command[2]))


def matching_names(environment: Mapping[str, str], patterns: Iterable[str]) -> list[str]:
    """Names of set variables that match one of the patterns."""
    pattern = _compile_patterns(tuple(patterns))
    return [name for name in environment if pattern.match(name)]


@cache
def _compile_patterns(patterns: tuple[str, ...]) -> re.Pattern[str]:
    """One compiled pattern, cached: there are some eighty patterns, used for every pod."""
    return re.compile("|".join(map(translate, patterns)) or "(?!)")


def unset_names(environment: Mapping[str, str], more: Iterable[str]) -> list[str]:
    """The names or patterns of `--env` that match no set variable."""
    return [name for name in more if not matching_names(environment, [name])]
