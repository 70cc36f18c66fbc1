"""asyncio: several coroutines take letters from one queue while another one sends them.

Run it as `python -m examples.async_client`; it ends by itself.
"""

from __future__ import annotations

import asyncio

import restante
from restante.aio import AsyncQueue

LETTERS = 30
CARRIERS = 3


async def post_letters(letters: AsyncQueue) -> None:
    """Sends in batches; the last few wait a moment before they are due."""
    for start in range(0, LETTERS - 5, 5):
        await letters.send_many([{"letter": start + n} for n in range(5)])
        await asyncio.sleep(0.02)
    await letters.send_many([{"letter": LETTERS - 5 + n} for n in range(5)], delay=0.3)


async def deliver(name: str, letters: AsyncQueue, delivered: list[int]) -> None:
    """Takes letters until none came for a second. A failure is logged and nacked, and stays as `message.error`."""
    while (message := await letters.receive(timeout=1)) is not None:
        async with message:
            await asyncio.sleep(0.005)
            if message.payload["letter"] % 10 == 7 and message.attempts == 1:
                raise LookupError("nobody at home")
            delivered.append(message.payload["letter"])
        if message.error is not None:
            print(f"{name}: letter {message.payload['letter']}: {message.error}, tried again later")


async def main() -> None:
    async with restante.aio.connect() as office:
        letters = office.queue("letters", retry=restante.fixed(0.1, 0.5))
        delivered: list[int] = []
        carriers = [deliver(f"carrier {n}", letters, delivered) for n in range(1, CARRIERS + 1)]
        await asyncio.gather(post_letters(letters), *carriers)
        print(f"{len(delivered)} letters delivered, each once: {sorted(delivered) == list(range(LETTERS))}")


if __name__ == "__main__":
    asyncio.run(main())
