"""Puts the results of the fault runs into `explain/guarantees.md`, from the JSON lines they write.

Run it as `python docs/fault_table.py FILE`; `-` reads standard input. Lines that are no result are passed over, several
results of one fault are added up, and one failure among them is the fault's. Without any result it changes nothing and
ends with code 1.
"""

from __future__ import annotations

import json
import re
import sys
from collections.abc import Iterable
from pathlib import Path
from typing import Any

PAGE = Path(__file__).parent / "explain" / "guarantees.md"
_SPACE = re.compile(r"(<!-- faults:start -->\n).*?(\n<!-- faults:end -->)", re.DOTALL)
#: What the rows of the fault tests stand for, in the order of the table; others follow under their own names.
FAULTS = {
    "1": "consumers killed at random moments",
    "2": "consumer killed between receive and handler",
    "3": "consumer killed after its work, before its ack",
    "4": "consumer stopped by SIGTERM under load",
    "4b": "stopped by a second signal",
    "4c": "stopped while a long handler runs",
    "5": "consumer frozen beyond its lease, then woken",
    "6": "handler that burns CPU beyond its lease",
    "7": "messages whose handler always raises",
    "8": "messages that kill their process",
    "9": "producer killed while sending",
    "10": "answer to a send lost",
    "10b": "answer to a batch lost",
    "10c": "answer to an ack lost",
    "10d": "answer to a receive lost",
    "10e": "answer to a claim into a lease journal lost",
    "10f": "answer to a verdict in a lease journal lost",
    "11": "request lost",
    "11b": "send that is never answered",
    "12": "storm of connection resets",
    "13": "half-open connection of a consumer",
    "13b": "half-open connection during a call",
    "14": "slow line, single bytes",
    "14b": "delayed messages over a slow line",
    "15": "server killed, append-only file on",
    "15b": "server down at the start",
    "16": "server killed without a file (the loss must be counted)",
    "17": "server frozen",
    "18": "server loading its data",
    "20": "bit flipped in a payload",
    "20b": "bit flipped anywhere in a stored message",
    "20c": "corrupt message at the head",
    "22": "server at maxmemory",
    "22b": "lease expires at maxmemory",
    "23": "eviction policy that deletes",
    "23b": "server made unsafe while in use",
    "26": "master dies, sentinels name another",
    "31": "scripts flushed under load",
    "33": "server clock jumps ahead",
    "33b": "server clock jumps back",
    "34": "clients' clocks are wrong",
    "34b": "lease under a wrong client clock",
    "35": "server clock swings",
    "38": "hostile names",
    "39": "key of a wrong type planted",
    "40": "bad numbers",
    "44": "one message, two hundred sleepers",
    "45": "several sweepers at once",
    "45b": "queue without a consumer",
    "46": "expired lease behind ten thousand long ones",
    "47": "delay of more than a year",
    "54": "replay killed half way",
    "cluster move": "cluster slot moves under load",
    "embedded": "embedded server shared by two processes",
    "embedded killed": "all users of an embedded server killed",
    "embedded together": "users of an embedded server that start together",
    "fork": "client used on both sides of a fork",
}
#: Counts that are added up over the runs of a fault.
SUMS = ("n", "lost", "dup", "early")


def results(lines: Iterable[str]) -> dict[str, dict[str, Any]]:
    """The results among the lines, one per fault."""
    found: dict[str, dict[str, Any]] = {}
    for line in lines:
        start = line.find("{")
        try:
            value = json.loads(line[start:]) if start >= 0 else None
        except ValueError:
            continue
        if not isinstance(value, dict) or not {"row", "verdict"} <= value.keys():
            continue
        one = found.setdefault(str(value["row"]), dict.fromkeys(SUMS, 0) | {"runs": 0, "slowest": 0.0, "verdict": ""})
        one["runs"] += 1
        for name in SUMS:
            one[name] += value.get(name) or 0
        one["slowest"] = max(one["slowest"], value.get("max_recovery_s") or 0.0)
        if not one["verdict"] or value["verdict"] != "pass":
            one["verdict"] = value["verdict"]
    return found


def table(found: dict[str, dict[str, Any]]) -> str:
    """The results as a Markdown table."""
    order = [row for row in FAULTS if row in found] + sorted(found.keys() - FAULTS.keys())
    head = ("fault", "runs", "messages", "lost", "unexplained doubles", "early", "slowest recovery, s", "verdict")
    made = [f"| {' | '.join(head)} |", f"|{'---|' * len(head)}"]
    for row in order:
        one = found[row]
        slowest = f"{one['slowest']:.2f}" if one["slowest"] else ""
        cells = (FAULTS.get(row, row), one["runs"], *(f"{one[name]:,}" for name in SUMS), slowest, one["verdict"])
        made.append(f"| {' | '.join(str(cell).replace('|', '/') for cell in cells)} |")
    return "\n".join(made)


def main(source: str) -> int:
    """Reads the lines and rewrites the page's section."""
    text = sys.stdin.read() if source == "-" else Path(source).read_text()
    found = results(text.splitlines())
    if not found:
        sys.stderr.write("no results found: each is a line of JSON with at least row and verdict\n")
        return 1
    made = table(found)
    PAGE.write_text(_SPACE.sub(lambda match: match[1] + made + match[2], PAGE.read_text()))
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1] if len(sys.argv) > 1 else "-"))
