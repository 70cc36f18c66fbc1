"""A consumer to be killed: leases messages, overwrites one folder per batch with their scores, then settles them.

Ends when the queue is empty. Arguments: server, queue, consumer, folder, number of the batch before whose verdicts it
stands still (-1 for none).
"""

from __future__ import annotations

import sys
import time
from pathlib import Path
from typing import Any

from pyspark.errors import StreamingQueryException
from pyspark.sql import DataFrame

import restante
from restante.core.admin import Admin
from restante.spark.verdicts import try_map
from tests.harness.spark_session import quick_session

#: Seconds between two runs while messages, or the consumer's name, are still held by the one before.
PAUSE = 1.0


def main(url: str, queue: str, consumer: str, folder: str, still: str) -> None:
    spark = quick_session()

    def score(row: dict[str, Any]) -> dict[str, Any]:
        return {"score": row["payload"]["n"] * 2}

    def each(batch: DataFrame, number: int) -> None:
        place = str(Path(folder, "scores", f"batch={number}"))
        try_map(batch, score, "score int").write.mode("overwrite").parquet(place)
        print("written", number, flush=True)
        if number == int(still):
            time.sleep(3600)
        settling = spark.read.parquet(place).write.format("restante").mode("append")
        settling.options(url=url, queue=queue, op="settle", consumer=consumer).save()
        print("settled", number, flush=True)

    while True:
        leased = spark.readStream.format("restante").options(
            url=url, kind="leases", queue=queue, consumer=consumer, leaseSeconds=12, maxRowsPerBatch=20
        )
        writing = leased.load().writeStream.foreachBatch(each).option("checkpointLocation", f"{folder}/checkpoint")
        running = writing.trigger(availableNow=True).start()
        try:
            running.awaitTermination()
        except StreamingQueryException as error:
            if "InUse" not in str(error):
                raise
            time.sleep(PAUSE)
            continue
        # What a killed one held comes back when its leases end, after this run took its measure.
        with restante.connect(url) as post:
            waiting = Admin(post).counts(queue).waiting
        if waiting:
            time.sleep(PAUSE)
            continue
        print("ended", flush=True)
        return


if __name__ == "__main__":
    main(*sys.argv[1:])
