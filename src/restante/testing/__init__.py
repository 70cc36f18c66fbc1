"""What tests of your own code need: a private server, handlers in the test's thread, a clock that tests move.

The pytest plugin of this package gives them as fixtures: `restante_client`, `restante_server` and `restante_clock`.
"""

from __future__ import annotations

from restante.testing.clock import Clock
from restante.testing.draining import Drained, Failure, drain, drain_async
from restante.testing.private_server import PrivateServer
from restante.testing.sent import assert_not_sent, assert_published, assert_sent, published_events, sent_messages

__all__ = [
    "Clock",
    "Drained",
    "Failure",
    "PrivateServer",
    "assert_not_sent",
    "assert_published",
    "assert_sent",
    "drain",
    "drain_async",
    "published_events",
    "sent_messages",
]
