"""`restante consume --processes` as a child of the tests, and what its handlers say."""

from __future__ import annotations

import os
import re
import signal
from dataclasses import dataclass
from pathlib import Path

from tests.harness.deadlines import wait_until
from tests.harness.processes import PythonProcess, is_alive

#: The command; what is to be changed in it for a test stands before it.
COMMAND = "import sys; from restante.cli import main; sys.exit(main())"

#: The module whose handlers run: the payload says what one does, and its lines tell `start`, `end`, id, attempts, pid.
APP = """
import ctypes, os, subprocess, threading, time
import restante

queue = restante.connect().queue(os.environ["TEST_QUEUE"])
kept = []

def say(word, message):
    os.write(1, f"{word} {message.id} {message.attempts} {os.getpid()}\\n".encode())

def burn(seconds):
    until = time.thread_time() + seconds
    while time.thread_time() < until:
        sum(range(200))

@queue.handler
def handle(message):
    say("start", message)
    verb, value = message.payload if isinstance(message.payload, list) else ("sleep", message.payload)
    if verb == "sleep":
        time.sleep(value)
    elif verb == "burn":
        burn(value)
    elif verb == "keep":
        kept.append(b"x" * value)
    elif verb == "freeze" and message.attempts == 1:
        ctypes.PyDLL(None).sleep(value)  # holds the interpreter, as a hanging extension does
    elif verb == "hang" and message.attempts == 1:
        time.sleep(value)
    elif verb == "orphan":
        subprocess.run(["sh", "-c", f"sleep {value} &"])
    elif verb == "exit" and message.attempts == 1:
        os._exit(9)
    say("end", message)
"""


@dataclass(frozen=True)
class Run:
    """A handler's line."""

    word: str
    id: str
    attempts: int
    pid: int


class Consuming(PythonProcess):
    """The parent; `terminate` reaches it alone, `kill9` and `close` the children too."""

    def __init__(
        self, url: str, queue: str, place: Path, *words: str, patch: str = "", method: str = "fork", app: str = APP
    ) -> None:
        (place / "app.py").write_text(app)
        super().__init__(
            f"{patch}\n{COMMAND}",
            *("consume", "app", "--start-method", method, *words),
            env={"RESTANTE_URL": url, "TEST_QUEUE": queue},
            cwd=place,
            forked=True,
        )

    def said(self, word: str) -> list[Run]:
        """What handlers have said so far."""
        found = []
        for line in self.lines:
            parts = line.split()
            if len(parts) == 4 and parts[0] == word:
                found.append(Run(parts[0], parts[1], int(parts[2]), int(parts[3])))
        return found

    def started(self) -> dict[int, str]:
        """Every child so far: its process id and the name under which it holds messages."""
        found = re.findall(r"\[(\d+)\] started process=(\d+) pid=(\d+)", self.stderr)
        host = os.uname().nodename
        return {int(pid): f"{host}:{parent}/{number}" for parent, number, pid in found}

    def children(self) -> list[int]:
        """The children that live."""
        return [pid for pid in self.started() if is_alive(pid)]

    def wait_consuming(self) -> None:
        """Waits until a child works."""
        self.wait_stderr("consuming ")

    def wait_stderr(self, text: str, times: int = 1) -> None:
        """Waits until the text was written that often; fails when the command ends before."""
        wait_until(
            lambda: self.stderr.count(text) >= times or self.returncode is not None,
            lambda: f"no {text!r} in {self.stderr}",
        )
        assert self.stderr.count(text) >= times, self.stderr

    def kill_parent(self) -> None:
        """SIGKILL to the parent alone."""
        os.kill(self.pid, signal.SIGKILL)
        self.wait()

    def wait_childless(self) -> None:
        """Waits until no child is left."""
        wait_until(lambda: not self.children(), lambda: f"{self.children()} are left: {self.stderr}")
