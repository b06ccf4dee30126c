"""Sends the request of an http template: `python httprun.py SPEC REPORT`, with the standard library only.

SPEC is JSON: method, url, headers ([[name, value], ...]), body, timeout_s, insecure. REPORT gets status, headers (name
to values, names as Go writes them) and body; or error, when there was no answer.
"""

import base64
import json
import os
import ssl
import sys
import urllib.error
import urllib.request
from typing import Any


def main() -> None:
    """Send it, and write down what came."""
    with open(sys.argv[1]) as file:
        spec = json.load(file)
    report = _send(spec)
    fresh = sys.argv[2] + ".part"
    with open(fresh, "w") as file:
        json.dump(report, file)
    os.replace(fresh, sys.argv[2])
    print(report.get("error") or f"{spec['method']} {spec['url']}: {report['status']}", flush=True)


def _send(spec: dict[str, Any]) -> dict[str, Any]:
    failed = f"{spec['method'].title()} {json.dumps(spec['url'])}: "
    context = ssl._create_unverified_context() if spec["insecure"] else None
    try:
        body = base64.b64decode(spec["body"]) or None
        request = urllib.request.Request(spec["url"], body, method=spec["method"])
        for name, value in spec["headers"]:
            request.add_header(name, value)
        with urllib.request.urlopen(request, timeout=spec["timeout_s"], context=context) as answer:
            return _told(answer)
    except urllib.error.HTTPError as answer:
        return _told(answer)
    except urllib.error.URLError as error:
        return {"error": f"{failed}{error.reason}"}
    except (OSError, ValueError) as error:
        return {"error": f"{failed}{error}"}


def _told(answer: Any) -> dict[str, Any]:
    headers: dict[str, list[str]] = {}
    for name, value in answer.headers.items():
        headers.setdefault("-".join(part.capitalize() for part in name.split("-")), []).append(value)
    return {"status": answer.status, "headers": headers, "body": answer.read().decode(errors="replace")}


if __name__ == "__main__":
    main()
