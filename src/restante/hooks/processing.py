"""What the shipped hooks share: one block around handlers, loops of users and coroutines alike."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Awaitable, Callable
from contextlib import AbstractContextManager
from typing import Any

from restante.core.hooks import Hook
from restante.core.message import Message


class Processing(Hook, ABC):
    """A hook whose `processing(message)` is the block around every handler, plain or coroutine."""

    @abstractmethod
    def processing(self, message: Message) -> AbstractContextManager[Any]:
        """The block around the handling of a message. In a loop: `with message, hook.processing(message):`."""

    def around(self, message: Message, call: Callable[[], Any]) -> Any:
        with self.processing(message):
            return call()

    async def around_async(self, message: Message, call: Callable[[], Awaitable[Any]]) -> Any:
        with self.processing(message):
            return await call()
