"""What people are shown of a step that failed: its own error, not Argo's reason for which it was not tried again."""

from collections.abc import Mapping
from typing import Any

from everstep.runtime.workflow.engine.nodes import NodeType
from everstep.runtime.workflow.engine.retries import NOT_TRIED_AGAIN


def node_message(node: Mapping[str, Any], nodes: Mapping[str, Mapping[str, Any]]) -> str:
    """The message of a node of `status.nodes`; of a Retry node that gave up, that of its last attempt."""
    message = str(node.get("message") or "")
    if message not in NOT_TRIED_AGAIN or node.get("type") != NodeType.RETRY:
        return message
    children = [nodes[child] for child in node.get("children") or () if child in nodes]
    attempts = [child for child in children if str(child.get("name")).startswith(f"{node.get('name')}(")]
    return str(attempts[-1].get("message") or message) if attempts else message


def workflow_message(status: Mapping[str, Any]) -> str:
    """The message of a workflow's status; where that is a Retry node's, what `node_message` says of the node."""
    message = str(status.get("message") or "")
    if message not in NOT_TRIED_AGAIN:
        return message
    nodes = status.get("nodes") or {}
    same = (node for node in nodes.values() if node.get("type") == NodeType.RETRY and node.get("message") == message)
    return next((node_message(node, nodes) for node in same), message)
