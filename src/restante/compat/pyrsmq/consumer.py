"""PyRSMQ's consumers over ours. A processor that raises or declines has its message received again."""

from __future__ import annotations

import json
import logging
import threading
from collections.abc import Callable
from typing import Any

from restante.compat.pyrsmq.rsmq import RedisSMQ
from restante.rsmq.calls import RsmqReceived
from restante.rsmq.client import LOOK_EVERY
from restante.rsmq.consumer import RsmqConsumer
from restante.rsmq.validation import DEFAULT_VT

__all__ = ["RedisSMQConsumer", "RedisSMQConsumerThread"]

log = logging.getLogger("restante")

#: Seconds PyRSMQ's consumer waits when the queue is empty. Ours wakes earlier for what becomes due.
EMPTY_QUEUE_DELAY = 2.0


class _Declined(Exception):
    """The processor returned something false: the message is to be tried again."""


class RedisSMQConsumer:
    """PyRSMQ's consumer: `processor(id, message, rc, ts)` returns whether the message is done.

    What it declines, and what it raises at, can be received again after `retry_delay` seconds. The message stays
    hidden while the processor works and no longer: extension ends also when it raises. The queue is made if missing.
    """

    def __init__(
        self,
        qname: str,
        processor: Callable[..., Any],
        *,
        retry_delay: int = 0,
        empty_queue_delay: float = EMPTY_QUEUE_DELAY,
        decode: bool = True,
        trace: bool = False,
        vt: int | None = None,
        **rsmq_params: Any,
    ) -> None:
        self.qname = qname
        self.processor = processor
        self.decode = decode
        self.trace = trace
        self.smq = RedisSMQ(qname=qname, **rsmq_params)
        self._finished = threading.Event()
        self._consumer: RsmqConsumer = self.smq.rsmq.consume(
            qname, self._process, vt=vt, retry_delay=retry_delay, look_every=empty_queue_delay or LOOK_EVERY
        )

    def _process(self, message: RsmqReceived) -> None:
        body: Any = message.message
        if self.decode:
            try:
                body = json.loads(body)
            except ValueError:
                pass  # not JSON: as it is, as PyRSMQ does
        if self.trace:
            log.debug("received queue=%s id=%s rc=%d", self.qname, message.id, message.rc)
        if not self.processor(id=message.id, message=body, rc=message.rc, ts=message.fr):
            raise _Declined("the processor did not say that it is done")

    def run(self) -> None:
        """Serves until stopped, or until SIGTERM or SIGINT where it runs in the main thread."""
        try:
            self.smq.createQueue(vt=DEFAULT_VT, quiet=True).exceptions(False).execute()
            self._consumer.run()
        finally:
            self.smq.quit()
            self._finished.set()

    def stop(self, wait: float | None = None) -> bool:
        """Ends it after the message at hand; waits for that up to `wait` seconds, and says whether it has ended."""
        self._consumer.stop()
        return self._finished.wait(wait or 0)


class RedisSMQConsumerThread(RedisSMQConsumer, threading.Thread):
    """The same as a daemon thread: `start()` and `stop()`."""

    def __init__(self, qname: str, processor: Callable[..., Any], **params: Any) -> None:
        threading.Thread.__init__(self, name=f"RedisSMQConsumer:{qname}", daemon=True)
        RedisSMQConsumer.__init__(self, qname, processor, **params)
