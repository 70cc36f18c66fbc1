"""Measures what groups cost and whether they are fair: `make bench-groups`.

- cost: server CPU per message (send, receive and ack) without groups, with them, and with a concurrency of one;
  rounds alternate, each figure is the median. With `--before DIR` also against the sources of an earlier commit.
- fairness: one group with 100,000 waiting messages beside 99 quiet ones; the waits of the quiet ones.
- memory: bytes per group with one waiting message, beyond those of the same message without a group.
"""

from __future__ import annotations

import argparse
import os
import random
import statistics
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path

import redis
from rich.console import Console

import restante
from benchmarks.figures import Bounds, Row, keep, show
from benchmarks.limits import server_cpu
from benchmarks.server import RedisServer

#: Messages of one round one by one, and in batches.
SINGLES, BATCHED, BATCH = 4_000, 40_000, 100
#: Groups among which the messages of a round are spread.
GROUPS = 100
PAYLOAD = "x" * 200
BOUNDS: Bounds = {
    "one by one, groups": ("<=", 1.3),
    "one by one, no groups against before": ("<=", 1.03),
    "batches of 100, no groups against before": ("<=", 1.03),
    "worst quiet group, p99 wait against the average": ("<=", 2.0),
    "bytes per group": ("<=", 600),
}
_CHILD = """
import sys
from benchmarks.groups import cost
print(*cost(int(sys.argv[1]), sys.argv[2], sys.argv[3] == "one"))
"""


def cost(port: int, kind: str, single: bool) -> tuple[float, float]:
    """Server CPU in µs per message of a send, and of a receive with its ack; kind is none, groups or strict."""
    with restante.connect(f"redis://127.0.0.1:{port}/0") as client:
        info = redis.Redis(port=port)
        info.flushall()
        queue = client.queue("q", group_concurrency=1) if kind == "strict" else client.queue("q")
        count = SINGLES if single else BATCHED
        chance = random.Random(1)
        named = [None if kind == "none" else f"tenant-{chance.randrange(GROUPS)}" for _ in range(count)]
        started = server_cpu(info)
        if single:
            for group in named:
                queue.send(PAYLOAD, **({"group": group} if group else {}))  # type: ignore[arg-type]  # older sources
        else:
            for start in range(0, count, BATCH):
                queue.send_many([_draft(group) for group in named[start : start + BATCH]])
        sent = server_cpu(info)
        acks: list[restante.LeasedMessage] = []
        done = 0
        while done < count:
            taken = queue.receive_many(1 if single else BATCH, acks=acks)
            done += len(acks)
            acks = taken
        end = server_cpu(info)
        info.close()
        return (sent - started) / count * 1e6, (end - sent) / count * 1e6


def _draft(group: str | None) -> restante.Draft:
    # Older sources know no groups.
    return restante.Draft(PAYLOAD) if group is None else restante.Draft(PAYLOAD, group=group)


def _of_child(port: int, kind: str, single: bool, source: Path) -> tuple[float, float]:
    here = Path(__file__).resolve().parent.parent
    environment = os.environ | {"PYTHONPATH": f"{source}{os.pathsep}{here}"}
    words = [sys.executable, "-c", _CHILD, str(port), kind, "one" if single else "many"]
    out = subprocess.run(words, env=environment, capture_output=True, text=True, check=True).stdout.split()
    return float(out[0]), float(out[1])


def costs(rounds: int, before: Path | None) -> list[Row]:
    """The cost of every kind, alternated."""
    here = Path(restante.__file__).parent.parent
    kinds: dict[str, Callable[[int, bool], tuple[float, float]]] = {
        kind: lambda port, single, kind=kind: _of_child(port, kind, single, here)  # type: ignore[misc]
        for kind in ("none", "groups", "strict")
    }
    if before is not None:
        kinds["before"] = lambda port, single: _of_child(port, "none", single, before)
    rows = []
    with RedisServer() as server:
        for single, title in ((True, "one by one"), (False, f"batches of {BATCH}")):
            found: dict[str, list[tuple[float, float]]] = {kind: [] for kind in kinds}
            for at in range(rounds):
                for kind, measure in list(kinds.items())[:: 1 if at % 2 else -1]:
                    found[kind].append(measure(server.port, single))
            sends = {kind: statistics.median(pair[0] for pair in pairs) for kind, pairs in found.items()}
            takes = {kind: statistics.median(pair[1] for pair in pairs) for kind, pairs in found.items()}
            note = "receive and ack, server CPU against none"
            rows += [
                Row(f"{title}, none", takes["none"], "µs", f"receive and ack; send {sends['none']:.1f} µs"),
                Row(f"{title}, groups", takes["groups"] / takes["none"], "×", note),
                Row(f"{title}, groups, send", sends["groups"] / sends["none"], "×", "server CPU against none"),
                Row(f"{title}, concurrency 1", takes["strict"] / takes["none"], "×", note),
            ]
            if before is not None:
                both = (sends["none"] + takes["none"]) / (sends["before"] + takes["before"])
                rows.append(Row(f"{title}, no groups against before", both, "×", "send, receive and ack"))
    return rows


def fairness(noisy: int = 100_000, quiet: int = 99, rounds: int = 200, step: int = 10) -> list[Row]:
    """A group with much waiting beside quiet ones: each round all send once, in any order, and as many are received."""
    with RedisServer() as server, restante.connect(server.url) as client:
        queue = client.queue("q")
        for _ in range(0, noisy, 1000):
            queue.send_many([restante.Draft("noisy", group="noisy")] * 1000)
        groups = [*(f"quiet-{at}" for at in range(quiet)), "noisy"]
        waits: dict[str, list[int]] = {group: [] for group in groups}
        sent_at: dict[str, int] = {}
        delivered, chance = 0, random.Random(2)
        for _ in range(rounds):
            chance.shuffle(groups)
            for start in range(0, len(groups), step):
                drafts = [restante.Draft(group, group=group) for group in groups[start : start + step]]
                sent_at |= dict.fromkeys(queue.send_many(drafts), delivered)
                taken = queue.receive_many(step)
                for message in taken:
                    delivered += 1
                    if message.id in sent_at:
                        waits[message.payload].append(delivered - sent_at[message.id])
                queue.ack_many(taken)
        del waits["noisy"]
        average = statistics.mean(wait for found in waits.values() for wait in found)
        worst = max(sorted(found)[int(len(found) * 0.99)] for found in waits.values())
        return [
            Row("waits of quiet groups, average", average, "deliveries", f"{noisy:,} of the noisy one wait"),
            Row("worst quiet group, p99 wait against the average", worst / average, "×", f"{worst} deliveries"),
        ]


def memory(count: int) -> list[Row]:
    """Bytes of the server per group with one waiting message, and what is left once all are acked."""

    def used(grouped: bool) -> tuple[int, int]:
        with RedisServer() as server, restante.connect(server.url) as client:
            queue = client.queue("q", journal="off", dedup=0)
            queue.send("x")
            empty = int(server.client.info("memory")["used_memory"])
            for start in range(0, count, 1000):
                drafts = [
                    restante.Draft("x", group=f"tenant-{at}" if grouped else None) for at in range(start, start + 1000)
                ]
                queue.send_many(drafts)
            full = int(server.client.info("memory")["used_memory"])
            while taken := queue.receive_many(1000):
                queue.ack_many(taken)
            time.sleep(0.2)
            left = int(server.client.hlen("restante:{q}:groups"))
            return full - empty, left

    (plain, _), (grouped, left) = used(False), used(True)
    return [
        Row("bytes per group", (grouped - plain) / count, "bytes", f"{count:,} groups with one waiting message each"),
        Row("bytes per message with its group", grouped / count, "bytes", ""),
        Row("records left once all are acked", left, "", "the clock of the priority"),
    ]


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--rounds", type=int, default=7, help="rounds of each cost")
    parser.add_argument("--groups", type=int, default=1_000_000, help="groups of the memory measure")
    parser.add_argument(
        "--before", type=Path, help="src directory of an earlier commit, to compare costs without groups"
    )
    parser.add_argument("--only", choices=("cost", "fairness", "memory"))
    parser.add_argument("--json", type=Path, help="write the figures there")
    options = parser.parse_args()
    rows: list[Row] = []
    if options.only in (None, "cost"):
        rows += costs(options.rounds, options.before)
    if options.only in (None, "fairness"):
        rows += fairness()
    if options.only in (None, "memory"):
        rows += memory(options.groups)
    held = show("groups", rows, BOUNDS, Console(width=120))
    if options.json:
        keep(options.json, rows)
    sys.exit(0 if held else 1)


if __name__ == "__main__":
    main()
