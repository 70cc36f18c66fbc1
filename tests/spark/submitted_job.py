"""The program that `spark-submit` runs in the tests: reads the journals, then takes them into a lake, and tells both.

Arguments: the server, the lake, the layers (bronze, or all). The last line of standard output is one JSON object.
"""

from __future__ import annotations

import json
import os
import sys
import time

from restante.spark.pipeline import Pipeline, PipelineOptions
from restante.spark.session import session


def where(_: int) -> tuple[str, str]:
    """The place an executor works in, and where it has the package from."""
    import restante

    time.sleep(1)  # long enough that the other executor takes the other one
    return os.getcwd(), str(restante.__file__)


def main() -> None:
    url, lake, layers = sys.argv[1:]
    spark = session()
    places = spark.sparkContext.parallelize(range(4), 4).map(where).collect()
    work = Pipeline(spark, PipelineOptions(url=url, lake=lake, batch_rows=3000, num_partitions=4))
    if layers == "bronze":
        work.refresh = lambda summary: None  # type: ignore[method-assign]
    journal = spark.read.format("restante").options(url=url, numPartitions=4).load()
    read = {row.queue: row["count"] for row in journal.groupBy("queue").count().collect()}
    summary = work.run_once()
    print(
        json.dumps(
            {
                "master": spark.sparkContext.master,
                "executors": sorted({place for place, _ in places}),
                "packages": sorted({file for _, file in places}),
                "read": read,
                "rows": summary.rows,
                "batches": summary.batches,
            }
        )
    )
    spark.stop()


if __name__ == "__main__":
    main()
