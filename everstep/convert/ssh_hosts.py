"""Commands of a job whose launcher starts processes on the other roles' hosts by ssh: horovodrun, mpirun."""

import re
from dataclasses import replace

from everstep.convert.field_reader import Fields
from everstep.convert.shell import filled_in_at_start, place_of_text
from everstep.convert.source import Pod

DISCOVERY = "EVERSTEP_DISCOVERY_SCRIPT"
"""The variable with the path of the round's own script."""
_OWN_SSH = "export PATH=$EVERSTEP_SSH:$PATH"
SERVER = ("python", "-m", "everstep.ssh_server")
_KEEP_RUNNING = ("python", "-m", "everstep.keep_running")
_MPI_HOSTS = ("python", "-m", "everstep.mpi_hosts")
_FOLDER = r"\s*(?:mkdir\s+-p\s+/(?:var/)?run/sshd\s*(?:&&|;)\s*)?"
_SSHD = re.compile(
    rf"{_FOLDER}(/usr/sbin/)?sshd(\s+-(f\s+\S+|[De]+))*(\s*(&&|;)\s*sleep\s+(inf|infinity|\d+[smhd]?))?\s*;?\s*"
)
"""A command that does nothing but serve ssh."""
_SSHD_FIRST = re.compile(rf"{_FOLDER}(?:/usr/sbin/)?sshd\s*(?:&&|;)\s*")
KEYS = (
    f"the job's keys are in $EVERSTEP_SSH: the launcher's command begins with {_OWN_SSH}, {' '.join(SERVER)} takes "
    "the place of sshd, and the image needs openssh-client, openssh-server, and a name and a shell for the user of its "
    "pods (1000 unless a securityContext says otherwise)"
)
_NO_SERVER = f"its command starts more than sshd, or none: have it run {' '.join(SERVER)}"


def with_own_ssh(pod: Pod) -> Pod:
    """A launcher's, whose command finds the job's ssh first; an sshd before it is left out, for nobody logs in."""
    words = list(pod.command)
    place = place_of_text(words)
    if not words:
        return pod
    if place:  # Within: a login shell's profile may set PATH anew.
        text = f"{_OWN_SSH}; {_SSHD_FIRST.sub('', words[place], count=1)}"
        return replace(pod, command=(*words[:place], text, *words[place + 1 :]))
    return replace(pod, command=("sh", "-c", f'{_OWN_SSH}; exec "$@"', "sh", *words))


def with_own_server(fields: Fields, pod: Pod, *path: str | int) -> Pod:
    """A host's, with the server of the job's keys in the place of sshd; `path`: where the role is, if there is more in
    its command, which is noted."""
    words = list(pod.command)
    place = place_of_text(words)
    text = words[place] if place else " ".join(words)
    if text and not _SSHD.fullmatch(text):
        fields.note(_NO_SERVER, *path)
        return pod
    return replace(pod, command=SERVER, has_program=True) if text else pod


def outliving_rounds(pod: Pod) -> Pod:
    """With a command that goes on when nodes come and go: it looks for hosts itself, or is a server."""
    return replace(pod, command=(*_KEEP_RUNNING, *pod.command)) if pod.command else pod


def with_mpi_hosts(pod: Pod) -> Pod:
    """With a command that each round starts anew, with the round's hosts."""
    return replace(pod, command=(*_MPI_HOSTS, *pod.command)) if pod.command else pod


def with_own_files(command: tuple[str, ...], files: dict[str, str]) -> tuple[str, ...]:
    """The command in which the variables of a round's files stand for the paths where an operator puts such files."""
    words = list(command)
    for path, variable in files.items():
        words = [word.replace(path, f"$({variable})") for word in words]
    return filled_in_at_start(words, {variable: variable for variable in files.values()})
