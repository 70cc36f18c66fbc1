"""PyRSMQ's consumers; on failure, if the processor raises or returns false, the message is received again."""

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

#: Seconds between two polls of an empty queue, as in PyRSMQ. This consumer wakes earlier for messages that become due.
EMPTY_QUEUE_DELAY = 2.0


class _Declined(Exception):
    """The processor returned a false value: the message must be processed again."""


class RedisSMQConsumer:
    """PyRSMQ's consumer: `processor(id, message, rc, ts)` returns whether the message is done.

    If the processor returns a false value or raises, the message can be received again after `retry_delay` seconds.
    The message stays hidden only while the processor works. A missing queue is created.
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
                pass  # not JSON: passed on unchanged, as in PyRSMQ
        if self.trace:
            log.debug("received queue=%s id=%s rc=%d", self.qname, message.id, message.rc)
        if not self.processor(id=message.id, message=body, rc=message.rc, ts=message.fr):
            raise _Declined("the processor returned a false value")

    def run(self) -> None:
        """Consumes until stopped; in the main thread also until SIGTERM or SIGINT."""
        try:
            self.smq.createQueue(vt=DEFAULT_VT, quiet=True).exceptions(False).execute()
            self._consumer.run()
        finally:
            self.smq.quit()
            self._finished.set()

    def stop(self, wait: float | None = None) -> bool:
        """Stops after the message in progress; waits up to `wait` seconds and returns whether it has stopped."""
        self._consumer.stop()
        return self._finished.wait(wait or 0)


class RedisSMQConsumerThread(RedisSMQConsumer, threading.Thread):
    """The consumer as a daemon thread, with `start()` and `stop()`."""

    def __init__(self, qname: str, processor: Callable[..., Any], **params: Any) -> None:
        threading.Thread.__init__(self, name=f"RedisSMQConsumer:{qname}", daemon=True)
        RedisSMQConsumer.__init__(self, qname, processor, **params)
