"""Programs written for another library, run from a folder with nothing but their imports changed."""

from __future__ import annotations

import itertools
import json
import os
import re
import subprocess
import sys
from collections.abc import Mapping
from contextlib import ExitStack
from pathlib import Path
from typing import Any

from tests.celery.workers import _PROGRAM, wait_for
from tests.harness.deadlines import PATIENCE
from tests.harness.ledger import read_ledger
from tests.harness.processes import CHECKOUT, PythonProcess
from tests.harness.zygote import run_forked

_numbers = itertools.count(1)
#: How the programs record what they did: one JSON line per write.
LEDGER = """
import json
import os


def note(kind, **facts):
    line = "\\n" + json.dumps({"kind": kind, **facts}, default=repr) + "\\n"
    file = os.open(os.environ["LEDGER"], os.O_WRONLY | os.O_APPEND | os.O_CREAT)
    os.write(file, line.encode())
    os.close(file)


def mended():
    return os.path.exists(os.environ["LEDGER"] + ".mended")
"""


class Programs:
    """A folder of programs, the broker they use, and the processes that run them."""

    def __init__(self, folder: Path, files: Mapping[str, str], library: str, broker: str, **env: str) -> None:
        self.folder, self.broker = folder, broker
        self.ledger = folder / "ledger"
        self.env = {"BROKER": broker, "LEDGER": str(self.ledger), "PYTHONWARNINGS": "default", **env}
        self._running = ExitStack()
        for name, text in {"ledger.py": LEDGER, **files}.items():
            path = folder / name
            path.parent.mkdir(parents=True, exist_ok=True)
            (path.parent / "__init__.py").touch()
            path.write_text(re.sub(rf"^(from|import) {library}\b", rf"\1 restante.compat.{library}", text, flags=re.M))

    def worker(self, app: str, *, fresh: bool = False, **env: str) -> PythonProcess:
        """`celery -A app worker`, ready; a `fresh` interpreter has imported nothing before."""
        words = [
            "-A",
            app,
            "worker",
            "-c",
            "1",
            "-l",
            "INFO",
            "-n",
            f"w{next(_numbers)}@test",
            "--without-mingle",
            "--without-gossip",
            "--without-heartbeat",
        ]
        made = self._running.enter_context(
            PythonProcess(_PROGRAM, *words, env={**self._environment(), **env}, cwd=self.folder, forked=not fresh)
        )
        wait_for(lambda: " ready." in made.stderr or made.returncode is not None, told=lambda: made.stderr[-3000:])
        assert made.returncode is None, made.stderr[-3000:]
        return made

    def run(self, text: str, *, fresh: bool = False, **env: str) -> str:
        """Runs a program to its end and returns what it printed; a `fresh` interpreter has imported nothing before."""
        environment = {**os.environ, **self._environment(), **env}
        if fresh:
            done = subprocess.run(
                [sys.executable, "-c", text],
                cwd=self.folder,
                env=environment,
                capture_output=True,
                text=True,
                timeout=PATIENCE * 2,
            )
            code, said, errors = done.returncode, done.stdout, done.stderr
        else:
            code, said, errors = run_forked(text, ["-c"], env=environment, cwd=self.folder)
        assert code == 0, errors[-3000:]
        return said

    def _environment(self) -> dict[str, str]:
        path = f"{self.folder}:{CHECKOUT / 'src'}:{CHECKOUT}"
        return {**self.env, "PYTHONPATH": path}

    def rows(self, kind: str, **facts: Any) -> list[dict[str, Any]]:
        """What the programs recorded."""
        found = [row for row in read_ledger(self.ledger) if row["kind"] == kind]
        return [row for row in found if all(row.get(name) == value for name, value in facts.items())]

    def wait_rows(self, count: int, kind: str, **facts: Any) -> list[dict[str, Any]]:
        wait_for(
            lambda: len(self.rows(kind, **facts)) >= count,
            PATIENCE,
            lambda: f"{len(self.rows(kind, **facts))} of {count} {kind} {json.dumps(facts)}",
        )
        return self.rows(kind, **facts)

    def mend(self) -> None:
        """Repairs the cause of the failing handlers."""
        Path(f"{self.ledger}.mended").touch()

    def close(self) -> None:
        self._running.close()
