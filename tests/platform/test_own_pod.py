"""How a step knows that it runs in a pod."""

import re

from everstep.runtime.platform import POD_VARIABLE
from tests.harness import ROOT


def test_the_variable_of_a_steps_own_pod_is_named_in_one_module() -> None:
    literal = re.compile(rf"[\"']{POD_VARIABLE}[\"']")
    files = [path for folder in ("everstep", "runtime", "steps", "pipelines") for path in (ROOT / folder).rglob("*.py")]
    naming = {path.relative_to(ROOT).as_posix() for path in files if literal.search(path.read_text())}
    assert naming == {"runtime/platform/__init__.py"}
