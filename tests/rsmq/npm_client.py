"""npm's own rsmq in a Node process: installed once from its lock, asked by lines of JSON.

Where Node or npm is missing, or the packages cannot be had, the tests are skipped at home and fail in CI.
"""

from __future__ import annotations

import functools
import hashlib
import json
import os
import shutil
import subprocess
import tempfile
import threading
from pathlib import Path
from queue import Queue
from typing import Any, Self

from tests.harness.deadlines import PATIENCE
from tests.harness.requirements import lack, require

_SOURCES = Path(__file__).with_name("npm")
#: Seconds npm may take to install seven small packages.
INSTALL_PATIENCE = 600


class NodeError(Exception):
    """An error of the Node client, by its name."""

    def __init__(self, name: str, message: str) -> None:
        super().__init__(message)
        self.name = name


@functools.cache
def installed() -> Path:
    """A folder with the packages of the lock, shared by all test runs."""
    require("node")
    npm = require("npm")
    lock = (_SOURCES / "package-lock.json").read_bytes()
    folder = Path(tempfile.gettempdir()) / f"restante-npm-{os.getuid()}" / hashlib.sha256(lock).hexdigest()[:16]
    if not folder.exists():
        folder.parent.mkdir(mode=0o700, exist_ok=True)
        with tempfile.TemporaryDirectory(dir=folder.parent) as scratch:
            for name in ("package.json", "package-lock.json"):
                shutil.copy(_SOURCES / name, scratch)
            words = [str(npm), "ci", "--no-audit", "--no-fund", "--loglevel=error"]
            done = subprocess.run(words, cwd=scratch, capture_output=True, text=True, timeout=INSTALL_PATIENCE)
            if done.returncode != 0:
                lack(f"npm could not install rsmq: {done.stderr[-500:]}")
            try:
                # A rename is atomic: a parallel run sees the whole folder or none.
                Path(scratch).rename(folder)
                Path(scratch).mkdir()
            except OSError:
                assert folder.exists()  # another run was quicker
    return folder


class NodeRsmq:
    """The Node client. Calls are named as there, options are keywords; `start` leaves a call running."""

    def __init__(self, port: int, namespace: str = "rsmq", *, realtime: bool = False) -> None:
        environment = {**os.environ, "NODE_PATH": str(installed() / "node_modules")}
        words = [str(require("node")), str(_SOURCES / "client.js"), str(port), namespace, "1" if realtime else "0"]
        # It exits when its input closes, so it ends with this process, even if that is killed.
        self._child = subprocess.Popen(words, env=environment, stdin=subprocess.PIPE, stdout=subprocess.PIPE)
        self._lock = threading.Lock()
        self._waiting: dict[int, Queue[dict[str, Any]]] = {}
        self._reader = threading.Thread(target=self._read, daemon=True)
        self._reader.start()

    def _read(self) -> None:
        assert self._child.stdout is not None
        for line in self._child.stdout:
            told = json.loads(line)
            self._waiting[told["number"]].put(told)

    def start(self, name: str, **options: Any) -> Queue[dict[str, Any]]:
        """Begins a call; `finish` waits for it."""
        with self._lock:
            number = len(self._waiting)
            answer = self._waiting[number] = Queue()
            assert self._child.stdin is not None
            self._child.stdin.write(json.dumps({"number": number, "call": name, "options": options}).encode() + b"\n")
            self._child.stdin.flush()
        return answer

    def finish(self, answer: Queue[dict[str, Any]], timeout: float = PATIENCE) -> Any:
        told = answer.get(timeout=timeout)
        if "error" in told:
            raise NodeError(told["error"]["name"], told["error"]["message"])
        return told.get("result")

    def __call__(self, name: str, **options: Any) -> Any:
        return self.finish(self.start(name, **options))

    def close(self) -> None:
        assert self._child.stdin is not None
        assert self._child.stdout is not None
        self._child.stdin.close()
        try:
            self._child.wait(PATIENCE)
        except subprocess.TimeoutExpired:
            self._child.kill()
            self._child.wait(PATIENCE)
        self._reader.join(PATIENCE)
        self._child.stdout.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()
