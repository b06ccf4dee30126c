"""Is somebody listening at the endpoint already?"""

import http.client
import ssl
from enum import StrEnum

from everstep.runtime.net.tls import Credentials, mismatch_reason
from everstep.runtime.net.tls_transport import SPEAKS_TLS
from everstep.runtime.protocol.messages import JOB_HEADER

_TIMEOUT_S = 5.0
_LONGEST = 1000


class Answer(StrEnum):
    """What listens there."""

    NOBODY = "nobody"
    MASTER = "this job's master"
    NOT_ALLOWED = "a master with another token"
    IN_TLS = "a master that speaks TLS, but received plain text"
    IN_CLEAR = "something that does not speak TLS"
    OTHER = "something else"


def probe_endpoint(address: str, port: int, credentials: Credentials, job: str) -> Answer:
    """Ask for a round that never exists: a master says so. A listener that times out is assumed to be a master."""
    host = f"[{address}]" if ":" in address else address
    connection = credentials.connection(f"{host}:{port}", _TIMEOUT_S)
    try:
        connection.request("GET", "/v1/rounds/0", headers={**credentials.headers, JOB_HEADER: job})
        answer = connection.getresponse()
        return _read(answer.status, answer.read(_LONGEST).decode(errors="replace"))
    except ssl.SSLCertVerificationError:
        return Answer.NOT_ALLOWED
    except TimeoutError:
        return Answer.MASTER if connection.sock else Answer.NOBODY
    except OSError as error:
        if mismatch_reason(error):
            return Answer.IN_CLEAR
        return Answer.OTHER if connection.sock else Answer.NOBODY
    except http.client.HTTPException:
        return Answer.OTHER
    finally:
        connection.close()


def _read(status: int, body: str) -> Answer:
    if status == http.client.UNAUTHORIZED:
        return Answer.NOT_ALLOWED
    if status == http.client.BAD_REQUEST and SPEAKS_TLS in body:
        return Answer.IN_TLS
    return Answer.MASTER if status == http.client.NOT_FOUND and '"error"' in body else Answer.OTHER
