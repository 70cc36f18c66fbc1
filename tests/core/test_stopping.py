"""A consumer that stops leaves nothing behind: no loop that is not closed, no word on standard error."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

from tests.core.bench import Bench
from tests.harness.deadlines import PATIENCE

PROGRAM = """
import asyncio, logging, sys, threading, time, warnings
import restante

logging.getLogger("restante").setLevel(logging.CRITICAL)
warnings.simplefilter("always")
post = restante.connect(sys.argv[1])
queue = post.queue("stopping-" + sys.argv[2], max_attempts=1)
seen = threading.Event()

if "plain" in sys.argv[2]:
    @queue.handler(kind="plain")
    def plain(message: restante.LeasedMessage) -> None:
        pass

if "coroutine" in sys.argv[2]:
    @queue.handler(kind="coroutine")
    async def coroutine(message: restante.LeasedMessage) -> None:
        await asyncio.sleep(0)
        if "fails" in sys.argv[2]:
            raise ValueError("as it should")
        if "hangs" in sys.argv[2]:
            seen.set()
            await asyncio.sleep(3600)

for kind in ("plain", "coroutine"):
    if kind in sys.argv[2]:
        queue.send(1, kind=kind)
hangs = "hangs" in sys.argv[2]
consumer = restante.Consumer([queue], concurrency=2, grace=0.1, stop_when_empty=not hangs)
if hangs:
    threading.Thread(target=lambda: (seen.wait(30), consumer.stop())).start()
consumer.run()
assert not [one for one in threading.enumerate() if one.name in ("restante-loop", "restante-renewal")]
del consumer
post.close()
print("handled")
"""


@pytest.mark.parametrize(
    "handlers", ["plain", "coroutine", "plain-coroutine", "plain-coroutine-fails", "plain-coroutine-hangs"]
)
def test_a_stopped_consumer_says_nothing_on_standard_error(debian: Bench, handlers: str, tmp_path: Path) -> None:
    program = tmp_path / "program.py"
    program.write_text(PROGRAM)
    done = subprocess.run(
        [sys.executable, "-X", "dev", program, debian.server.url, handlers],
        capture_output=True,
        text=True,
        timeout=PATIENCE,
    )
    assert (done.stdout, done.stderr, done.returncode) == ("handled\n", "", 0)
