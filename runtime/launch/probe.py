"""Who listens at the endpoint already?"""

import http.client
import urllib.error
import urllib.request
from enum import StrEnum

from runtime.job.messages import JOB_HEADER

_TIMEOUT_S = 5.0


class Answer(StrEnum):
    """What was found there."""

    NOBODY = "nobody"
    MASTER = "this job's master"
    NOT_ALLOWED = "a master with another token"
    OTHER = "something else"


def ask(address: str, port: int, token: str, job: str) -> Answer:
    """Ask for a round that never is: a master says so. Who accepts and is slow to answer is taken for one."""
    host = f"[{address}]" if ":" in address else address
    headers = {"Authorization": f"Bearer {token}", JOB_HEADER: job}
    request = urllib.request.Request(f"http://{host}:{port}/v1/rounds/0", headers=headers)
    direct = urllib.request.build_opener(urllib.request.ProxyHandler({}))
    try:
        with direct.open(request, timeout=_TIMEOUT_S):
            return Answer.OTHER
    except urllib.error.HTTPError as error:
        if error.code == 401:
            return Answer.NOT_ALLOWED
        return Answer.MASTER if error.code == 404 and b'"error"' in error.read(100) else Answer.OTHER
    except urllib.error.URLError:
        return Answer.NOBODY
    except TimeoutError:
        return Answer.MASTER
    except (OSError, http.client.HTTPException):
        return Answer.OTHER
