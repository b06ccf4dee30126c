"""Sends the request of an http template: `python httprun.py SPEC REPORT`, with the standard library only.

SPEC is JSON: method, url, headers ([[name, value], ...]), body, timeout_s, insecure. REPORT gets status, headers (name
to values, names as Go writes them) and body; or error, when there was no answer.
"""

import base64
import json
import os
import signal
import ssl
import sys
from pathlib import Path
from typing import Any

sys.path.append(str(Path(__file__).absolute().parents[4]))

from everstep.runtime.net import web

MAX_BODY_BYTES = 16 << 20
"""Of a response; a longer one is an error."""


def main() -> None:
    """Send the request and write the report."""
    with open(sys.argv[1]) as file:
        spec = json.load(file)
    report = _send(spec)
    fresh = sys.argv[2] + ".part"
    with open(fresh, "w") as file:
        json.dump(report, file)
    os.replace(fresh, sys.argv[2])
    print(report.get("error") or f"{spec['method']} {spec['url']}: {report['status']}", flush=True)


def _send(spec: dict[str, Any]) -> dict[str, Any]:
    # A server that trickles its response would reset a timeout of each read.
    signal.signal(signal.SIGALRM, _raise_timeout)
    signal.setitimer(signal.ITIMER_REAL, spec["timeout_s"])
    context = ssl._create_unverified_context() if spec["insecure"] else None
    try:
        body = base64.b64decode(spec["body"]) or None
        request = web.Request(spec["url"], spec["method"], spec["headers"], body, spec["timeout_s"], context)
        with web.open_request(request) as answer:
            headers: dict[str, list[str]] = {}
            for name, value in answer.headers:
                headers.setdefault("-".join(part.capitalize() for part in name.split("-")), []).append(value)
            text = answer.body(MAX_BODY_BYTES).decode(errors="replace")
            return {"status": answer.status, "headers": headers, "body": text}
    except web.WebError as error:
        return {"error": str(error)}
    except (TimeoutError, ValueError) as error:
        return {"error": f"{spec['method'].title()} {json.dumps(spec['url'])}: {error}"}
    finally:
        signal.setitimer(signal.ITIMER_REAL, 0)


def _raise_timeout(*_: object) -> None:
    raise TimeoutError("context deadline exceeded")


if __name__ == "__main__":
    main()
