"""Faults planted in the queue over HTTP."""

from __future__ import annotations

from typing import Final

from tests.mutants.planting import Fault

_CLIENT = ("tests/faults/test_http_client.py",)

FAULTS: Final = (
    Fault(
        "http",
        "a send is given up at the first lost answer",
        "HttpClient.ask",
        "(PATIENCE if sends or safe else 0)",
        "(PATIENCE if safe else 0)",
        _CLIENT,
    ),
    Fault(
        "http",
        "a receive or a verdict whose answer was lost is repeated",
        "HttpClient.ask",
        "(PATIENCE if sends or safe else 0)",
        "PATIENCE",
        _CLIENT,
    ),
    Fault(
        "http",
        "a send in doubt is told as one that never reached the server",
        "HttpClient.ask",
        "if sends and (written or repeated):",
        "if False:",
        _CLIENT,
    ),
    Fault(
        "http",
        "a send to a server that is not ready is not repeated",
        "HttpClient.ask",
        "if isinstance(failure, Unavailable) and (sends or safe) and",
        "if isinstance(failure, Unavailable) and safe and",
        _CLIENT,
    ),
    Fault(
        "http",
        "a connection that the server closed while idle fails the next verdict",
        "HttpClient._take",
        "if not _ended(link):",
        "if True:",
        _CLIENT,
    ),
    Fault(
        "http",
        "a send that was repeated says that it stored nothing",
        "HttpQueue.send_many",
        'if sent["stored"] or sent["id"] == mine else',
        'if sent["stored"] else',
        _CLIENT,
    ),
    Fault(
        "http",
        "a send that stored nothing says that it did",
        "HttpQueue.send_many",
        'if sent["stored"] or sent["id"] == mine else',
        "if True else",
        _CLIENT,
    ),
    Fault(
        "http",
        "a verdict is not noted on its message",
        "HttpQueue._settle",
        "        if verb in _VERDICTS:\n            for message in messages:\n"
        "                message.settled, message.verdict = True, _VERDICTS[verb]\n        return answer",
        "        return answer",
        ("tests/contract/test_leases.py", "-k", "a_verdict_on_many and http"),
    ),
    Fault(
        "http",
        "a verdict that failed counts as given",
        "HttpQueue._settle",
        "        answer = self._client.ask(",
        "        for message in messages:\n            message.settled = True\n        answer = self._client.ask(",
        _CLIENT,
    ),
    Fault(
        "http",
        "a receive waits no longer than one request",
        "HttpClient._receive",
        "if messages or deadline - time.monotonic() <= 0:",
        "if True:",
        _CLIENT,
    ),
    Fault(
        "http",
        "a receive does not wait at all",
        "HttpClient._receive",
        'body["wait_seconds"] = min(left, POLL)',
        'body["wait_seconds"] = 0.0',
        (*_CLIENT, "-k", "one_request"),
    ),
    Fault(
        "http",
        "a full queue is told as bad input",
        "_error",
        "if isinstance(kind, type) and issubclass(kind, RestanteError):",
        "if False:",
        _CLIENT,
    ),
    Fault(
        "http",
        "a lost lease does not say which message it was",
        "_error",
        'return kind(message, ids=problem.get("ids") or ())',
        "return kind(message)",
        ("tests/contract/test_leases.py", "-k", "expired_lease and http"),
    ),
    Fault(
        "http",
        "a delay is not passed on",
        "_item",
        'item["delay_seconds"] = seconds(draft.delay, "delay")',
        'seconds(draft.delay, "delay")',
        ("tests/contract/test_delays.py", "-k", "never_early and http"),
    ),
    Fault(
        "http",
        "the lease of a message is not passed on",
        "_item",
        'item["lease_seconds"] = seconds(draft.lease, "lease", least=0.001)',
        'seconds(draft.lease, "lease", least=0.001)',
        ("tests/contract/test_leases.py", "-k", "decides_the_lease and http"),
    ),
    Fault(
        "http",
        "the error of a nack is not passed on",
        "HttpQueue.nack_many",
        ", **_failure(error))",
        ")",
        ("tests/contract/test_retries.py", "-k", "the_last_allowed and http"),
    ),
    Fault(
        "http",
        "the retry policy of a nack is not passed on",
        "HttpQueue.nack_many",
        "retry=policy, ",
        "",
        ("tests/contract/test_retries.py", "-k", "its_own_policy and http"),
    ),
)
