"""Measure what the server itself can do, so that every figure can be given as a ratio to it."""

from __future__ import annotations

import csv
import subprocess
import time
from pathlib import Path
from typing import Any


def redis_limit(port: int, payload_bytes: int = 200, count: int = 100_000) -> float:
    """Return requests/s of `redis-benchmark -c 1 -P 1` SET with this payload ("rb1")."""
    command = ["redis-benchmark", "-p", str(port), "-c", "1", "-P", "1", "-t", "set"]
    command += ["-d", str(payload_bytes), "-n", str(count), "--csv"]
    done = subprocess.run(command, capture_output=True, text=True, check=True, timeout=120)
    rows = csv.DictReader(done.stdout.splitlines())
    for row in rows:
        if row["test"] == "SET":
            return float(row["rps"])
    raise RuntimeError(f"redis-benchmark reported no SET line: {done.stdout!r}")


def server_cpu(client: Any) -> float:
    """Return the CPU seconds (user and system) the server has used since it started."""
    info = client.info("cpu")
    return float(info["used_cpu_user"]) + float(info["used_cpu_sys"])


def machine_load(seconds: float = 0.5) -> float:
    """Return the share of the processors that others use now; figures above a tenth are suspect."""

    def ticks() -> tuple[int, int]:
        fields = [int(text) for text in Path("/proc/stat").read_text().split("\n")[0].split()[1:9]]
        return sum(fields), fields[3] + fields[4]

    total, idle = ticks()
    time.sleep(seconds)
    total_after, idle_after = ticks()
    return 1 - (idle_after - idle) / max(1, total_after - total)
