"""An http template: the request that its pod sends (`httprun`), and what the answer means for its node.

Rules after Argo's documentation ("HTTP Template"): 2xx is success, unless a successCondition says what is.
"""

import base64
import json
import sys
from collections.abc import Mapping
from pathlib import Path
from typing import Any, NamedTuple

from everstep.runtime.workflow.expressions import ExpressionError, holds
from everstep.runtime.workflow.manifest.fields import list_at
from everstep.runtime.workflow.manifest.library import Library

TIMEOUT_S = 30


class HttpOutcome(NamedTuple):
    """The outcome of a request."""

    result: str | None
    """The body."""
    failed: str = ""
    """Why the response does not meet the success condition."""
    error: str = ""
    """Why there is no response."""


def prepare_command(http: Mapping[str, Any], library: Library, folder: Path, report: Path) -> list[str]:
    """Write the request to a file; returns the command that sends it. Raises MissingObjectError."""
    body_bytes = (http.get("bodyFrom") or {}).get("bytes")
    spec = {
        "method": str(http.get("method") or "GET"),
        "url": str(http.get("url") or ""),
        "headers": [(str(header["name"]), _header_value(header, library)) for header in list_at(http, "headers")],
        "body": body_bytes or base64.b64encode(str(http.get("body") or "").encode()).decode(),
        "timeout_s": int(http.get("timeoutSeconds") or TIMEOUT_S),
        "insecure": bool(http.get("insecureSkipVerify")),
    }
    folder.mkdir(parents=True, exist_ok=True)
    place = folder / "spec.json"
    place.touch(0o600)
    place.write_text(json.dumps(spec))
    program = str(Path(__file__).with_name("httprun.py"))
    return [sys.executable, "-I", "-S", program, str(place), str(report)]


def _header_value(entry: Mapping[str, Any], library: Library) -> str:
    reference = (entry.get("valueFrom") or {}).get("secretKeyRef")
    return (library.value("Secret", reference) or "") if reference else str(entry.get("value") or "")


def read_outcome(http: Mapping[str, Any], report: Path) -> HttpOutcome:
    """Read the outcome that the pod of an http template reported."""
    try:
        http_report = json.loads(report.read_text())
    except FileNotFoundError:
        return HttpOutcome(None, error="pod deleted")
    if "error" in http_report:
        return HttpOutcome(None, error=http_report["error"])
    condition, body = str(http.get("successCondition") or ""), http_report["body"]
    if not condition:
        good = 200 <= http_report["status"] < 300
        return HttpOutcome(body, "" if good else f"received non-2xx response code: {http_report['status']}")
    request = {
        "method": str(http.get("method") or ""), "url": str(http.get("url") or ""), "body": str(http.get("body") or ""),
        "headers": {str(header["name"]): [str(header.get("value") or "")] for header in list_at(http, "headers")},
    }  # fmt: skip
    response = {"statusCode": http_report["status"], "body": body, "headers": http_report["headers"]}
    try:
        if holds(condition, {"request": request, "response": response}):
            return HttpOutcome(body)
    except ExpressionError as error:
        return HttpOutcome(None, error=str(error))
    return HttpOutcome(body, f"successCondition '{condition}' evaluated false")
