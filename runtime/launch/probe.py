"""Who listens at the endpoint already?"""

import http.client
import ssl
from contextlib import suppress
from enum import StrEnum
from typing import NamedTuple

import psutil

from everstep.runtime.display.terminal import as_text
from everstep.runtime.net.tls import Credentials, mismatch_reason
from everstep.runtime.net.tls_transport import SPEAKS_TLS
from everstep.runtime.protocol.messages import JOB_HEADER

_TIMEOUT_S = 3.0
_LONGEST = 1000
_LONGEST_SEEN = 80
MASTER_MODULE = "everstep.runtime.launch.master_main"


class Answer(StrEnum):
    """What listens there."""

    NOBODY = "nobody"
    MASTER = "this job's master"
    NOT_ALLOWED = "a master with another token"
    IN_TLS = "a master that speaks TLS, but received plain text"
    IN_CLEAR = "something that does not speak TLS"
    SILENT = "something that accepts connections and does not answer"
    OTHER = "something else"


class Listener(NamedTuple):
    """What was found at an address."""

    answer: Answer
    seen: str = ""
    """What a listener other than a master answered, for people."""


def probe_endpoint(address: str, port: int, credentials: Credentials, job: str) -> Listener:
    """Ask for a round that never exists: a master says so at once, whatever it waits for. Blocks up to 3 s."""
    host = f"[{address}]" if ":" in address else address
    connection = credentials.connection(f"{host}:{port}", _TIMEOUT_S)
    try:
        connection.request("GET", "/v1/rounds/0", headers={**credentials.headers, JOB_HEADER: job})
        reply = connection.getresponse()
        answer = _read(reply.status, reply.read(_LONGEST).decode(errors="replace"))
        server = f" of {_printable(reply.headers['Server'])}" if reply.headers["Server"] else ""
        return Listener(answer, f"answers HTTP {reply.status}{server}")
    except ssl.SSLCertVerificationError:
        return Listener(Answer.NOT_ALLOWED)
    except TimeoutError:
        return Listener(Answer.SILENT, "accepts connections and does not answer") if connection.sock else NOBODY
    except OSError as error:
        if mismatch_reason(error):
            return Listener(Answer.IN_CLEAR)
        return Listener(Answer.OTHER, "closes connections") if connection.sock else NOBODY
    except http.client.BadStatusLine as error:
        return Listener(Answer.OTHER, f"answers {_printable(str(error))!r}")
    except http.client.HTTPException:
        return Listener(Answer.OTHER, "does not speak HTTP")
    finally:
        connection.close()


NOBODY = Listener(Answer.NOBODY)


def listening_process(address: str, port: int) -> psutil.Process | None:
    """The process of this machine that listens there; None if there is none that this user can see."""
    ours = {(host, port) for host in (address, "0.0.0.0", "::")}
    with suppress(psutil.Error, OSError):
        for connection in psutil.net_connections("tcp"):
            if connection.status == psutil.CONN_LISTEN and tuple(connection.laddr) in ours and connection.pid:
                return psutil.Process(connection.pid)
    return None


def is_master(process: psutil.Process) -> bool:
    """Is the process a master that `everstep launch` started?"""
    with suppress(psutil.Error):
        return MASTER_MODULE in process.cmdline()
    return False


def process_text(process: psutil.Process) -> str:
    """The process for people: its pid and what was started."""
    try:
        return f"process {process.pid} ({_printable(' '.join(process.cmdline()) or process.name())})"
    except psutil.Error:
        return f"process {process.pid}"


def _printable(text: str) -> str:
    text = as_text(text.strip())
    return text if len(text) <= _LONGEST_SEEN else f"{text[:_LONGEST_SEEN]}..."


def _read(status: int, body: str) -> Answer:
    if status == http.client.UNAUTHORIZED:
        return Answer.NOT_ALLOWED
    if status == http.client.BAD_REQUEST and SPEAKS_TLS in body:
        return Answer.IN_TLS
    return Answer.MASTER if status == http.client.NOT_FOUND and '"error"' in body else Answer.OTHER
