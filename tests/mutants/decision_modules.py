"""`make mutation`: tries every small change to the modules that decide, with mutmut, and scores the tests.

    python -m tests.mutants.decision_modules [--module core/retry] [--write-docs]

The catalogue of planted faults holds mistakes that people make; mutmut tries all small changes without choosing. Many
change nothing that anyone could notice (the wording of an error, a bound that no input reaches), so the score is
reported and every survivor listed, and no score is required. If the tests fail without a change, the run fails.
"""

from __future__ import annotations

import argparse
import datetime
import json
import os
import shutil
import subprocess
import sys
import sysconfig
import tempfile
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Final

from rich.console import Console
from rich.table import Table

from benchmarks.environments import environment
from tests.mutants.running import ROOT

RESULTS: Final = ROOT / "benchmarks" / "results" / "decision-modules.txt"
PAGE: Final = ROOT / "docs" / "explain" / "planted-faults.md"
BEGIN, END = "<!-- mutation: begin -->", "<!-- mutation: end -->"
#: The modules that decide without I/O, each with the tests closest to it.
MODULES: Final = {
    "core/retry": ("tests/core/test_retry_policy.py",),
    "core/call_retry": ("tests/core/test_reactions.py",),
    "core/restart_policy": ("tests/core/test_restart_policy.py",),
    "core/settings": ("tests/core/test_settings.py",),
    "rabbitmq/topology": (
        "tests/rabbitmq/test_topology.py",
        # It starts a program of its own, which does not import the changed package.
        "--deselect=tests/rabbitmq/test_topology.py::test_the_topology_is_known_without_kombu",
    ),
    "bus/envelope": ("tests/bus/test_envelope.py",),
    "server/access": ("tests/server/test_tokens.py", "tests/server/test_access.py"),
}


@dataclass(frozen=True)
class Score:
    """What became of the changes to one module."""

    module: str
    changes: int
    caught: int
    #: Changes that no test of those chosen runs.
    untested: int
    #: Each survivor as the lines it takes away and adds.
    survivors: tuple[str, ...]

    @property
    def share(self) -> float:
        return self.caught / self.changes if self.changes else 0.0


def main(words: Sequence[str] | None = None) -> int:
    parser = argparse.ArgumentParser(prog="python -m tests.mutants.decision_modules")
    parser.add_argument("--module", action="append", choices=sorted(MODULES))
    parser.add_argument("--processes", type=int, default=os.cpu_count() or 1)
    parser.add_argument("--write-docs", action="store_true", help=f"put the table into {PAGE.name}")
    told = parser.parse_args(words)
    console = Console()
    python = environment("mutation", console, ROOT / "requirements" / "mutation.txt")
    see_our_packages(python)
    RESULTS.parent.mkdir(exist_ok=True)
    scores: list[Score] = []
    for module in told.module or MODULES:
        with console.status(f"{module}: trying every change"):
            scores.append(score(module, MODULES[module], python, told.processes))
        console.print(f"{module}: {scores[-1].caught} of {scores[-1].changes} changes caught")
        RESULTS.write_text("\n".join(f"{one.module}\n{text}\n" for one in scores for text in one.survivors))
    show(scores, console)
    console.print(f"survivors: {RESULTS.relative_to(ROOT)}")
    if told.write_docs:
        write_page(PAGE, scores)
    return 0


def see_our_packages(python: Path) -> None:
    """Lets mutmut's environment import the packages of this one, since it runs the tests in its own process."""
    folders = subprocess.run(
        [python, "-c", "import sysconfig; print(sysconfig.get_paths()['purelib'])"],
        capture_output=True,
        text=True,
        check=True,
    )
    Path(folders.stdout.strip(), "restante-packages.pth").write_text(sysconfig.get_paths()["purelib"] + "\n")


def score(module: str, tests: Sequence[str], python: Path, processes: int) -> Score:
    """Runs mutmut on one module, in a copy of the checkout."""
    with tempfile.TemporaryDirectory(prefix="restante-mutation-") as folder:
        copy = Path(folder)
        for name in ("src", "tests", "docs"):
            shutil.copytree(ROOT / name, copy / name, ignore=shutil.ignore_patterns("__pycache__", "static"))
        (copy / "pyproject.toml").write_text((ROOT / "pyproject.toml").read_text() + _settings(module, tests))
        _mutmut(python, copy, "run", "--max-children", str(processes))
        _mutmut(python, copy, "export-cicd-stats")
        counts = json.loads((copy / "mutants" / "mutmut-cicd-stats.json").read_text())
        listed = _mutmut(python, copy, "results").split("\n")
        alive = [line.partition(":")[0].strip() for line in listed if line.rstrip().endswith(("survived", "no tests"))]
        texts = tuple(_changed_lines(_mutmut(python, copy, "show", name)) for name in alive)
        ended = counts["killed"] + counts["timeout"] + counts["segfault"]
        return Score(module, counts["total"], ended, counts["no_tests"], texts)


def _settings(module: str, tests: Sequence[str]) -> str:
    return f"""
[tool.mutmut]
source_paths = ["src"]
only_mutate = ["src/restante/{module}.py"]
also_copy = ["docs"]
pytest_add_cli_args = ["-q"]
pytest_add_cli_args_test_selection = {json.dumps(list(tests))}
use_git_change_detection = false
"""


def _mutmut(python: Path, folder: Path, *words: str) -> str:
    done = subprocess.run(
        [python, "-m", "mutmut", *words], cwd=folder, capture_output=True, text=True, env=os.environ | {"CI": "true"}
    )
    if done.returncode:
        raise SystemExit(
            f"mutmut {' '.join(words)} ended with {done.returncode}:\n{(done.stdout + done.stderr)[-3000:]}"
        )
    return done.stdout


def _changed_lines(diff: str) -> str:
    return "\n".join(
        line for line in diff.split("\n") if line.startswith(("-", "+")) and not line.startswith(("---", "+++"))
    )


def show(scores: Sequence[Score], console: Console) -> None:
    table = Table(title="Every small change to the modules that decide", title_justify="left")
    for heading in ("module", "changes", "caught", "not reached", "score"):
        table.add_column(heading, justify="left" if heading == "module" else "right")
    for one in scores:
        table.add_row(one.module, str(one.changes), str(one.caught), str(one.untested), f"{one.share:.0%}")
    console.print(table)


def write_page(page: Path, scores: Sequence[Score]) -> None:
    """Puts the table between the page's marks."""
    lines = [f"Run on {datetime.date.today().isoformat()}.", ""]
    lines += ["| module | changes | caught | reached by no test | score |", "|---|---|---|---|---|"]
    lines += [
        f"| `{one.module}.py` | {one.changes} | {one.caught} | {one.untested} | {one.share:.0%} |" for one in scores
    ]
    head, _, rest = page.read_text().partition(BEGIN)
    page.write_text("\n".join([head + BEGIN, *lines, END]) + rest.partition(END)[2])


if __name__ == "__main__":
    sys.exit(main())
