"""The job's ssh: its keys, client and server, each with one line about what is missing; how logins begin and end."""

import itertools
import os
import shutil
import signal
import socket
import subprocess
import sys
from collections.abc import Mapping
from pathlib import Path
from types import SimpleNamespace

import pytest

from everstep.runtime.agent.frameworks import ssh, ssh_connection, ssh_session
from tests.harness import wait_until

NO_SSHD = "server._FOLDERS = ()"
ROOT = "pwd = server.pwd.struct_passwd(('root', 'x', 0, 0, '', '/', '/bin/sh')); server.pwd.getpwuid = lambda _: pwd"
"""The user is root, whoever runs the test."""
AS_ROOT = f"{ROOT}; server.os.getuid = lambda: 0; server._ROOT_NEEDS = {{}}"
needs_sshd = pytest.mark.skipif(shutil.which("sshd", path="/usr/sbin") is None, reason="there is no openssh-server")


def serve(
    folder: Path, changes: str, variables: Mapping[str, str] = {}, before: tuple[str, ...] = ()
) -> subprocess.CompletedProcess[str]:
    """Run the server with these changes to its module, and a stand-in for sshd that ends at once."""
    (folder / "sshd").write_text("#!/bin/sh\necho sshd runs\n")
    (folder / "sshd").chmod(0o755)
    code = f"import sys, everstep.ssh_server as server; {changes}; sys.exit(server.main())"
    environment = {"PATH": str(folder), "EVERSTEP_SSH": "/nowhere", **variables}
    command = [*before, sys.executable, "-c", code]
    return subprocess.run(command, env=environment, capture_output=True, text=True, check=False)


@pytest.mark.parametrize(
    ("changes", "variables", "says"),
    [
        (
            "0",
            {"EVERSTEP_SSH": ""},
            "EVERSTEP_SSH is not set; run it in a role of a job spec with frameworkType: horovod",
        ),
        (NO_SSHD, {"PATH": "/nowhere"}, "there is no sshd; install openssh-server in the image"),
        (
            ROOT.replace("/bin/sh", "/usr/sbin/nologin"),
            {},
            "user root has no shell; give it one in /etc/passwd of the image",
        ),
        (ROOT.replace("/bin/sh", "/no/sh"), {}, "user root has no shell; give it one in /etc/passwd of the image"),
        (
            f"{AS_ROOT}; server._ROOT_NEEDS = {{'SYS_CHROOT': 63}}",
            {},
            "root lacks SYS_CHROOT; add these capabilities in the container's securityContext, or run as a user with a "
            "name and a shell (runAsUser)",
        ),
        (
            f"{AS_ROOT}; server._SHADOW = server.Path('shadow')",
            {},
            "user root is locked, so sshd refuses it; in the image: usermod -p '*' root",
        ),
        (
            f"{AS_ROOT}; server._SHADOW = server.Path('.'); server._RUN = server.Path('/proc/sshd')",
            {},
            "/proc/sshd cannot be made (No such file or directory), which sshd of root needs; make it in the image, or "
            "mount an emptyDir there",
        ),
    ],
)
def test_what_is_missing_is_said_in_one_line(
    changes: str, variables: dict[str, str], says: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    Path("shadow").write_text("daemon:*:1\nroot:!locked:1\n")
    ended = serve(tmp_path, changes, variables)
    assert (ended.returncode, ended.stderr, ended.stdout) == (2, f"everstep.ssh_server: {says}\n", "")


def test_a_port_that_somebody_else_has_is_said_in_one_line(tmp_path: Path) -> None:
    with socket.create_server(("127.0.0.1", 0)) as other:
        (tmp_path / "known_hosts").write_text("* key")
        port = other.getsockname()[1]
        changes = f"{ROOT}; server.os.getuid = lambda: 1; server.PORT = {port}; server._TURN_S = 0.01"
        ended = serve(tmp_path, changes, {"EVERSTEP_SSH": str(tmp_path)})
    assert ended.returncode == 1
    assert ended.stderr.startswith(f"everstep.ssh_server: another program has port {port} of this machine")
    assert ended.stderr.count("\n") == 1


def test_the_server_of_a_killed_node_gives_the_port_back(tmp_path: Path) -> None:
    (tmp_path / "known_hosts").write_text("* key")
    (tmp_path / "sshd").write_text(f"#!/bin/sh\necho $$ > {tmp_path}/pid\nexec /bin/sleep 600\n")
    (tmp_path / "sshd").chmod(0o755)
    code = (
        f"import sys, everstep.ssh_server as server; {ROOT}; server.os.getuid = lambda: 1; server.PORT = 0; "
        "sys.exit(server.main())"
    )
    environment = {"PATH": str(tmp_path), "EVERSTEP_SSH": str(tmp_path)}
    server = subprocess.Popen([sys.executable, "-c", code], env=environment)
    pid = int(wait_until(lambda: (tmp_path / "pid").exists() and (tmp_path / "pid").read_text(), "sshd"))
    assert _state(pid) in "SR"
    server.kill()
    server.wait()
    wait_until(lambda: not Path(f"/proc/{pid}").exists() or "Z" in _state(pid), "its end")


@needs_sshd
def test_sshd_itself_reads_that_the_key_of_the_job_alone_lets_in_and_runs_the_session_alone(tmp_path: Path) -> None:
    ssh.write_keys(tmp_path / "ssh", "secret", "job")
    sshd = shutil.which("sshd", path="/usr/sbin") or ""
    options = subprocess.check_output([sshd, "-T", "-f", str(tmp_path / "ssh" / "sshd_config")], text=True).splitlines()
    assert {
        "authenticationmethods publickey", "passwordauthentication no", "kbdinteractiveauthentication no",
        "disableforwarding yes", "permituserrc no", "permituserenvironment no", "usepam no", "gssapiauthentication no",
        f"authorizedkeysfile {tmp_path}/ssh/authorized_keys", "trustedusercakeys none", "maxstartups 200:30:200",
    } <= set(options)  # fmt: skip
    assert [line for line in options if line.startswith("forcecommand exec ")]
    assert [line for line in options if line.startswith("acceptenv")] == []


def test_keys_that_were_written_in_part_are_written_again(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    write, writes = ssh._write, itertools.count()

    def full_disk(path: Path, content: bytes, mode: int = 0o600) -> None:
        if next(writes) == 3:
            raise OSError("No space left on device")
        write(path, content, mode)

    monkeypatch.setattr(ssh, "_write", full_disk)
    with pytest.raises(OSError, match="No space left"):
        ssh.write_keys(tmp_path / "ssh", "secret", "job")
    assert not (tmp_path / "ssh").exists()
    ssh.write_keys(tmp_path / "ssh", "secret", "job")
    assert len(list((tmp_path / "ssh").iterdir())) == 7
    assert [path.name for path in tmp_path.iterdir()] == ["ssh"]


def test_an_image_without_ssh_is_named_by_the_jobs_own_ssh(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PATH", str(tmp_path))
    ssh.write_keys(tmp_path / "ssh", "secret", "job")
    ended = subprocess.run([tmp_path / "ssh" / "ssh", "host"], capture_output=True, text=True, check=False)
    line = "everstep: there is no ssh to start processes on other hosts; install openssh-client in the image\n"
    assert (ended.returncode, ended.stderr) == (127, line)


def test_a_folder_in_which_nothing_may_be_run_is_refused_with_what_to_do(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    status = os.statvfs(tmp_path)

    class Noexec:
        f_flag = status.f_flag | os.ST_NOEXEC

    monkeypatch.setattr(ssh.os, "statvfs", lambda _: Noexec)
    with pytest.raises(OSError, match=r"is mounted noexec.* give --tmpfs /dev/shm:exec"):
        ssh.write_keys(tmp_path / "ssh", "secret", "job")
    assert list(tmp_path.iterdir()) == []


def test_a_login_waits_for_a_server_that_starts_later(monkeypatch: pytest.MonkeyPatch) -> None:
    ours, theirs = socket.socketpair()
    refusals = []
    with ours, socket.socket() as server:
        server.bind(("127.0.0.1", 0))

        def begin(seconds: float) -> None:
            refusals.append(seconds)
            server.listen()

        monkeypatch.setattr(ssh_connection.time, "sleep", begin)
        monkeypatch.setattr(ssh_connection.sys, "stdout", SimpleNamespace(fileno=theirs.detach))
        assert ssh_connection.main("127.0.0.1", str(server.getsockname()[1])) == 0
        assert len(refusals) == 1
        _, (passed_on,), _, _ = socket.recv_fds(ours, 1, 1)
        with server.accept()[0] as accepted, socket.socket(fileno=passed_on) as connection:
            accepted.sendall(b"SSH-2.0")
            assert connection.recv(7) == b"SSH-2.0"
            assert connection.gettimeout() is None


def test_a_server_that_never_starts_is_said_in_one_line(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(ssh_connection, "_WAIT_S", 0.0)
    with socket.socket() as nobody:
        nobody.bind(("127.0.0.1", 0))
        assert ssh_connection.main("127.0.0.1", str(nobody.getsockname()[1])) == 1
    (line,) = capsys.readouterr().err.splitlines()
    assert line.startswith("everstep: no ssh server at 127.0.0.1, port ")
    assert "let each of its nodes run python -m everstep.ssh_server" in line


def test_all_that_a_login_runs_ends_with_the_process_of_the_server(tmp_path: Path) -> None:
    """The process of a login is a shell by the name of sshd here."""
    server = tmp_path / "sshd"
    server.symlink_to("/bin/sh")
    command = f"sleep 600 & echo $! > {tmp_path}/pid; wait"
    session = [sys.executable, "-I", "-S", ssh_session.__file__]
    login = subprocess.Popen(
        [str(server), "-c", '"$@" & wait', "sshd", "setsid", *session],
        env={**os.environ, "SSH_ORIGINAL_COMMAND": command},
    )
    pid = int(wait_until(lambda: (tmp_path / "pid").exists() and (tmp_path / "pid").read_text(), "the login's process"))
    login.send_signal(signal.SIGKILL)
    login.wait()
    wait_until(lambda: not Path(f"/proc/{pid}").exists() or "Z" in _state(pid), "its end")


def _state(pid: int) -> str:
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0]
    except OSError:
        return "Z"
