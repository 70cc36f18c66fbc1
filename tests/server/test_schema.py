"""The API against its own description: generated requests of every operation, right ones and wrong ones."""

from __future__ import annotations

from typing import Any

import pytest
import schemathesis
from hypothesis import HealthCheck, settings
from schemathesis.specs.openapi.checks import negative_data_rejection, positive_data_acceptance

import restante
from restante.server import Serving, create_app
from restante.server.access import Tokens
from restante.server.shapes import MAX_WAIT


@schemathesis.serializer("application/x-ndjson")
def as_lines(context: Any, value: Any) -> bytes:
    """A body that is text already."""
    return str(value).encode(errors="replace")


#: Whether a text is a file of messages is more than a description of text can say; and what is generated as a wrong
#: list of queues, or a wrong namespace, travels as parameters of other names, which are passed over.
EXCLUDED = {
    "import": [positive_data_acceptance], "journal": [negative_data_rejection],
    "rsmq_queues": [negative_data_rejection],
}  # fmt: skip
#: Requests per operation.
EXAMPLES = 20

described = schemathesis.openapi.from_dict(create_app("redis://localhost:1")._app.openapi())  # type: ignore[attr-defined]


@pytest.fixture
def token(serving: Serving) -> str:
    """A server with something in it, which asks for a token."""
    with restante.connect(serving.office.post.url) as post:
        text = Tokens(post).create("schema", ["operate"])[1]
        serving.office.tokens._asked_at = float("-inf")
        queue = post.queue("orders", keep_done=10)
        queue.send_many([{"n": n} for n in range(20)])
        for message in queue.receive_many(4):
            message.bury(error=TimeoutError("no"))
    return text


@described.parametrize()
@settings(max_examples=EXAMPLES, deadline=None, suppress_health_check=list(HealthCheck), derandomize=True)
def test_every_operation_does_what_it_says(case: Any, serving: Serving, token: str) -> None:
    headers = {"Authorization": f"Bearer {token}"}
    if case.operation.definition.raw["operationId"] == "journal":
        headers["Accept"] = "application/json"  # as a stream it would never end
    body: dict[str, Any] = case.body if isinstance(case.body, dict) else {}
    wait: Any = body.get("wait_seconds")
    if type(wait) in (int, float) and 0 <= wait <= MAX_WAIT:
        body["wait_seconds"] = 0  # it would only take its time
    if str(body.get("durability")).startswith("replica:"):
        body["durability"] = "memory"  # this server has no replicas, and says so by 503
    excluded = EXCLUDED.get(case.operation.definition.raw["operationId"], [])
    case.call_and_validate(base_url=serving.address, headers=headers, timeout=300, excluded_checks=excluded)
