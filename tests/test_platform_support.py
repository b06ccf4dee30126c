"""Systems without what local runs need are told so in one sentence."""

import errno
import os

import pytest

from everstep.cli.main import main
from everstep.runtime.system.platform_support import has_pidfds, platform_lack


@pytest.mark.parametrize(
    ("system", "release", "expected_text"),
    [
        ("darwin", "24.1.0", "macOS: local runs need Linux"),
        ("win32", "10", "use WSL 2"),
        ("linux", "4.4.0-19041-Microsoft", "wsl --set-version NAME 2"),
        ("linux", "4.15.0-213-generic", "Linux 4.15.0-213-generic without pidfds: local runs need Linux 5.4"),
        ("freebsd14", "14.1", "freebsd14: local runs need Linux"),
    ],
)
def test_a_system_that_lacks_something_says_what(system: str, release: str, expected_text: str) -> None:
    assert expected_text in platform_lack(system, release, pidfds=False)
    assert "\n" not in platform_lack(system, release, pidfds=False)


@pytest.mark.parametrize("release", ["6.1.0-13-amd64", "5.15.153.1-microsoft-standard-WSL2"])
def test_linux_and_wsl_2_lack_nothing(release: str) -> None:
    assert platform_lack("linux", release, pidfds=True) == ""


def test_a_kernel_without_pidfd_open_is_noticed(monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse(_: int) -> int:
        raise OSError(errno.ENOSYS, os.strerror(errno.ENOSYS))

    assert has_pidfds(), "the tests run where local runs can"
    monkeypatch.setattr("os.pidfd_open", refuse)
    assert not has_pidfds()


@pytest.mark.parametrize("words", [["launch", "train.py"], ["workflow", "run", "w.yaml"]])
def test_a_command_that_runs_here_ends_with_that_sentence(
    words: list[str], monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr("everstep.errors.sys.platform", "darwin")
    assert main(words) == 2
    assert capsys.readouterr().err.startswith(f"everstep {' '.join(words[:-1])}: macOS: ")
