"""Packages that `pip install everstep` leaves out, and who needs them: said in one line before anything starts."""

from collections.abc import Mapping
from importlib.util import find_spec
from typing import Any

from everstep.errors import BadInput

EXTRAS: Mapping[str, str] = {
    "numpy": "preprocess", "pyspark": "preprocess", "tokenizers": "preprocess",
    "torch": "train", "transformers": "train", "safetensors": "train",
}  # fmt: skip
"""The extra of the package that brings each; several bring numpy and tokenizers."""
STEPS: Mapping[str, tuple[str, ...]] = {
    "corpus": ("numpy",), "preprocess": ("numpy", "pyspark"), "model": ("numpy", "torch"), "check": ("torch",),
    "train": ("numpy", "torch"), "evaluate": ("numpy", "torch"),
}  # fmt: skip
"""What each of Everstep's steps imports of it, at least."""
_STEP = "everstep.steps."


def require(*packages: str, who: str = "", otherwise: str = "") -> None:
    """Raise BadInput if this Python lacks one of these packages. `otherwise` follows the command that installs it."""
    if missing := sorted({name for name in packages if find_spec(name) is None}):
        extras = sorted({EXTRAS[name] for name in missing})
        extra = extras[0] if len(extras) == 1 else "all"
        raise BadInput(f"{who}this Python has no {', '.join(missing)}: pip install 'everstep[{extra}]'{otherwise}")


def require_for(manifest: Mapping[str, Any]) -> None:
    """Raise BadInput if this Python lacks a package of one of Everstep's own steps in that workflow."""
    spec = manifest.get("spec")
    templates = spec.get("templates") if isinstance(spec, Mapping) else None
    steps = {
        step for template in templates or () if isinstance(template, Mapping) and (step := _step_of(template)) in STEPS
    }
    missing = {step: STEPS[step] for step in sorted(steps) if any(find_spec(name) is None for name in STEPS[step])}
    if missing:
        who = f"{'step' if len(missing) == 1 else 'steps'} {', '.join(missing)}: "
        require(*(name for names in missing.values() for name in names), who=who, otherwise=", or submit it to Argo")


def hint(error: ModuleNotFoundError) -> str:
    """What to install for a command that could not import one of these packages; empty for any other module."""
    name = (error.name or "").partition(".")[0]
    return f"this Python has no {name}: pip install 'everstep[{EXTRAS[name]}]'" if name in EXTRAS else ""


def _step_of(template: Mapping[str, Any]) -> str:
    container = template.get("container")
    command = container.get("command") if isinstance(container, Mapping) else None
    last = command[-1] if isinstance(command, list) and command[:2] == ["python", "-m"] else None
    return last.removeprefix(_STEP) if isinstance(last, str) and last.startswith(_STEP) else ""
