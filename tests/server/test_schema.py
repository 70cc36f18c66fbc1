"""The API against its own description: generated requests of every operation, right ones and wrong ones."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from functools import partial
from typing import Any

import pytest
import requests
import schemathesis
from hypothesis import HealthCheck, settings
from schemathesis.specs.openapi.checks import negative_data_rejection, positive_data_acceptance

import restante
from restante.core.settings import ClientSettings
from restante.server import ServerSettings, Serving
from restante.server.access import Tokens
from restante.server.requests import MAX_WAIT
from tests.harness.deadlines import PATIENCE
from tests.harness.servers import RedisServer
from tests.server.calls import described
from tests.server.conftest import empty


@schemathesis.serializer("application/x-ndjson")
def as_lines(context: Any, value: Any) -> bytes:
    """A body that is text already."""
    return str(value).encode(errors="replace")


#: Whether a text is a file of messages, or a cron expression that ever matches, is more than a description of text can
#: say, and so is which options the message at the end of a batch does without; and what is generated as a wrong list of
#: queues, or beside a namespace, may be empty and travel as nothing.
EXCLUDED = {
    "import": [positive_data_acceptance],
    "put_schedule": [positive_data_acceptance],
    "send_batch": [positive_data_acceptance],
    "schedules": [negative_data_rejection],
    "journal": [negative_data_rejection],
    "rsmq_queues": [negative_data_rejection],
}
#: One for all requests: making one, and asking the environment for proxies, takes longer than an answer.
SESSION = requests.Session()
SESSION.trust_env = False
#: Requests per operation, in `make test` and in `make long`.
EXAMPLES, CHAOS_EXAMPLES = 6, 100


@pytest.fixture(scope="module")
def description() -> Any:
    return schemathesis.openapi.from_dict(described())


#: Built in the test, not during collection, where every process would spend seven seconds on it.
operations = schemathesis.pytest.from_fixture("description")


@pytest.fixture(scope="module")
def _serving(_redis: RedisServer) -> Iterator[Serving]:
    """A server with long timeouts: generating requests keeps this process busy for seconds."""
    patient = partial(ClientSettings, connect_timeout=PATIENCE, socket_timeout=PATIENCE, patience=PATIENCE)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr("restante.server.state.ClientSettings", patient)
        with Serving(_redis.url, ServerSettings(port=0)) as serving:
            yield serving


@pytest.fixture
def fill(redis: RedisServer, serving: Serving) -> Callable[[str], str]:
    """Resets the server before the first request of each operation and returns the token to use."""
    filled: dict[str, str] = {}

    def fill(operation: str) -> str:
        if operation not in filled:
            empty(redis, serving)
            with restante.connect(serving.state.client.url) as post:
                filled[operation] = Tokens(post).create("schema", ["operate"])[1]
                serving.state.tokens._asked_at = float("-inf")
                queue = post.queue("orders", keep_done=10)
                queue.send_many([{"n": n} for n in range(20)])
                for message in queue.receive_many(4):
                    message.bury(error=TimeoutError("no"))
        return filled[operation]

    return fill


def trying(examples: int) -> settings:
    return settings(max_examples=examples, deadline=None, suppress_health_check=list(HealthCheck), derandomize=True)


@operations.parametrize()
@trying(EXAMPLES)
def test_every_operation_does_what_it_says(case: Any, serving: Serving, fill: Callable[[str], str]) -> None:
    prove(case, serving, fill)


@pytest.mark.chaos
@operations.parametrize()
@trying(CHAOS_EXAMPLES)
def test_every_operation_does_what_it_says_of_many_more(
    case: Any, serving: Serving, fill: Callable[[str], str]
) -> None:
    prove(case, serving, fill)


def prove(case: Any, serving: Serving, fill: Callable[[str], str]) -> None:
    """Sends one generated request, and compares the answer with the description."""
    operation = case.operation.definition.raw["operationId"]
    headers = {"Authorization": f"Bearer {fill(operation)}"}
    if operation == "journal":
        headers["Accept"] = "application/json"  # as a stream it would never end
    body: dict[str, Any] = case.body if isinstance(case.body, dict) else {}
    wait: Any = body.get("wait_seconds")
    if type(wait) in (int, float) and 0 <= wait <= MAX_WAIT:
        body["wait_seconds"] = 0  # it would only take its time
    if operation == "status" and case.query:
        case.query.pop("wait_seconds", None)
    if body.get("durability") == "disk" or str(body.get("durability")).startswith("replica:"):
        body["durability"] = "memory"  # this server has no append-only file and no replicas, and says so by 503
    excluded = EXCLUDED.get(operation, [])
    SESSION.cookies.clear()  # signing in sets one, and the next request must stand on its own
    case.call_and_validate(
        base_url=serving.address, headers=headers, timeout=300, excluded_checks=excluded, session=SESSION
    )
