"""Time limits in a program that is traced, as by a debugger, a profiler or coverage.py.

In Python 3.11 an exception that one thread raises in another can make all traced threads wait (`time_limit._raise_in`).
"""

from __future__ import annotations

import pytest

from restante import Admin, Client, State
from tests.harness.deadlines import PATIENCE, wait_until
from tests.harness.processes import PythonProcess
from tests.harness.servers import RedisServer

#: A consumer in which Python calls a function for every line, or for every call; its first message passes its limit.
PROGRAM = """
import sys, threading, time
import restante
from restante.core import time_limit

url, name, tool, way = sys.argv[1:]
time_limit.STOP_GRACE = 0.2
opened = threading.Event()
post = restante.connect(url)
queue = post.queue(name, timeout=0.2, max_attempts=1)

@queue.handler
def handle(message):
    if message.payload == "slow":
        if way == "in C":
            opened.wait({patience})
        deadline = time.monotonic() + {patience}
        while way == "in Python" and time.monotonic() < deadline:
            time.sleep(0.01)
    print(message.payload, flush=True)

def trace(frame, event, argument):
    return trace

for module in (threading, sys):
    (module.settrace if tool == "trace" else module.setprofile)(trace)
consumer = restante.Consumer([queue], stop_when_empty=True)
consumer.run()
opened.set()
print("ended", consumer.handled, consumer.failed, flush=True)
"""


@pytest.mark.parametrize("way", ["in Python", "in C"])
@pytest.mark.parametrize("tool", ["trace", "profile"])
def test_a_traced_program_goes_on_when_a_handler_passes_its_limit(
    server: RedisServer, post: Client, view: Admin, name: str, tool: str, way: str
) -> None:
    queue = post.queue(name)
    slow = queue.send("slow", priority=9)
    queue.send("next")
    with PythonProcess(PROGRAM.format(patience=PATIENCE), server.url, name, tool, way) as program:
        program.wait_line("next")
        wait_until(lambda: view.show(name, slow).state is State.DEAD)
        assert view.show(name, slow).history[-1].error_class == "TimeLimit"
        program.wait_line("ended 1 1")
