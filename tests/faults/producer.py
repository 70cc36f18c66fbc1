"""A producer as a process of its own: sends for ever and says each id on stdout once its send has returned."""

from __future__ import annotations

import json
import os
import sys

import restante


def main() -> None:
    told = json.loads(sys.argv[1])
    queue = restante.connect(told["url"], **told.get("client", {})).queue(told["queue"])
    number = 0
    while True:
        batch = [{"n": number + place, "text": "x" * 200} for place in range(1 + number % 7)]
        ids = queue.send_many(batch, **told.get("options", {}))
        number += len(batch)
        os.write(1, "".join(f"sent {id}\n" for id in ids).encode())


if __name__ == "__main__":
    main()
