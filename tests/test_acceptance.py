"""Words that select lines of an acceptance also select their tests."""

import argparse
import subprocess
import sys

from benchmarks.acceptance import _pytest_arguments


def test_a_word_of_two_words_selects_the_tests_that_have_both() -> None:
    words = {"shapes": ["tests/watch/test_hang_culprit.py::different shape"]}
    arguments = _pytest_arguments(words, argparse.Namespace(words=["shapes"]), ())
    command = [sys.executable, "-m", "pytest", "-n0", "-q", "--co", "-p", "no:cacheprovider", *arguments]
    listed = subprocess.run(command, capture_output=True, text=True, check=False)
    assert listed.returncode == 0, listed.stdout
