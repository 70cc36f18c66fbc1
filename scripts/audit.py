"""`make audit`: asks the public databases for known faults in the locked packages of Python and npm.

A check before a release, not a part of `make test`: it needs the network. What could not be asked is never taken for
clean. The exit code is 0 if every package was looked up and nothing is known, 1 if something is known, 3 if a database
could not be reached or did not know a package.
"""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path
from typing import Any, Final

from rich.console import Console
from rich.table import Table

from benchmarks.environments import environment

ROOT: Final = Path(__file__).resolve().parents[1]
#: Faults that do not touch us, by id, each with the reason.
EXPLAINED: Final[dict[str, str]] = {}
#: Folders with packages of npm.
NPM: Final = ("dashboard", "tests/rsmq/npm")
CLEAN, KNOWN, UNASKED = 0, 1, 3


def python(console: Console) -> tuple[list[tuple[str, str, str]], list[str]]:
    """Known faults of the locked Python packages as (package, id, remedy), and the packages nobody could tell about."""
    tool = environment("audit", console, ROOT / "requirements" / "audit.txt")
    words = ["--requirement", str(ROOT / "requirements" / "dev.lock"), "--require-hashes", "--disable-pip"]
    done = subprocess.run(
        [tool, "-m", "pip_audit", *words, "--progress-spinner", "off", "--format", "json"],
        capture_output=True,
        text=True,
    )
    try:
        told: dict[str, Any] = json.loads(done.stdout)
    except ValueError:
        return [], [f"pip-audit: {done.stderr.strip()[-300:]}"]
    return read_python(told)


def read_python(told: dict[str, Any]) -> tuple[list[tuple[str, str, str]], list[str]]:
    faults, unasked = [], []
    for package in told["dependencies"]:
        if "skip_reason" in package:
            unasked.append(package["name"])
        for fault in package.get("vulns", ()):
            remedy = ", ".join(fault["fix_versions"]) or "no fixed version"
            faults.append((f"{package['name']} {package['version']}", fault["id"], remedy))
    return faults, unasked


def npm(folder: str) -> tuple[list[tuple[str, str, str]], list[str]]:
    """The same for the packages of npm that a folder locks."""
    done = subprocess.run(
        ["npm", "audit", "--json", "--package-lock-only"], cwd=ROOT / folder, capture_output=True, text=True
    )
    try:
        return read_npm(json.loads(done.stdout))
    except ValueError:
        return [], [f"npm: {done.stderr.strip()[-300:]}"]


def read_npm(told: dict[str, Any]) -> tuple[list[tuple[str, str, str]], list[str]]:
    if "vulnerabilities" not in told:
        return [], [f"npm: {told.get('message') or told.get('error')}"]
    faults = []
    for name, package in told["vulnerabilities"].items():
        for fault in package["via"]:
            if isinstance(fault, dict):  # a text names another package of this list
                faults.append((f"{name} {package['range']}", str(fault["url"]).rpartition("/")[2], fault["title"]))
    return faults, []


def main() -> int:
    console = Console()
    answers = [*(npm(folder) for folder in NPM), python(console)]
    faults = [fault for found, _ in answers for fault in found]
    unasked = [name for _, names in answers for name in names]
    open_faults = [fault for fault in faults if fault[1] not in EXPLAINED]
    if faults:
        table = Table("package", "fault", "remedy or reason")
        for package, id, remedy in faults:
            table.add_row(package, id, EXPLAINED.get(id, remedy))
        console.print(table)
    if unasked:
        console.print(f"not looked up ({len(unasked)}): {', '.join(unasked[:10])}{' …' if len(unasked) > 10 else ''}")
    if open_faults:
        return KNOWN
    if unasked:
        return UNASKED
    console.print("every package was looked up, and nothing is known")
    return CLEAN


if __name__ == "__main__":
    sys.exit(main())
