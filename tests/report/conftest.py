"""`maker`: the module that writes runs as the real parts leave them."""

import importlib.util
import sys
from pathlib import Path
from types import ModuleType

import pytest


@pytest.fixture(scope="session")
def maker() -> ModuleType:
    """tests/report/run_maker.py."""
    spec = importlib.util.spec_from_file_location("run_maker", Path(__file__).with_name("run_maker.py"))
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    sys.modules["run_maker"] = module
    spec.loader.exec_module(module)
    return module
