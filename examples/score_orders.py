"""Spark as a consumer: orders are leased, scored by DataFrame code, written to Parquet, and settled row by row.

Run it with `python -m examples.score_orders`; it brings its own server, sends sample orders and ends when all are done.
Orders over the limit are refused for good, orders whose data cannot be read are retried and die at last.
"""

from __future__ import annotations

import random
import tempfile

from pyspark.sql import DataFrame
from pyspark.sql import functions as F  # noqa: N812 - Spark's own name for it

import restante
from restante.spark.session import session

ORDER = "order bigint, customer string, lines array<struct<price: double, amount: int>>"
#: Above this an order is for people, not for machines.
LIMIT = 10_000.0


def sample(post: restante.Client, count: int) -> None:
    """Sends orders; a few are huge, a few are broken."""
    dice = random.Random(7)
    orders = post.queue("orders", max_attempts=2, retry=restante.fixed(0))
    for start in range(0, count, 500):
        batch = []
        for order in range(start, min(start + 500, count)):
            amount = 9999 if order % 211 == 0 else dice.randint(1, 5)
            lines = [{"price": round(dice.uniform(1, 90), 2), "amount": amount} for _ in range(dice.randint(1, 4))]
            broken = order % 307 == 1
            batch.append({"order": order, "customer": f"c{order % 50}", "lines": "none" if broken else lines})
        orders.send_many(batch, kind="order.placed")


def scored(leased: DataFrame) -> DataFrame:
    """Orders with their total, a score against the customer's mean, and a verdict."""
    read = leased.withColumn("data", F.from_json(F.col("payload").cast("string"), ORDER))
    total = F.aggregate("data.lines", F.lit(0.0), lambda sum_, line: sum_ + line["price"] * line["amount"])
    priced = read.withColumn("total", F.round(total, 2))
    means = priced.groupBy("data.customer").agg(F.avg("total").alias("mean"), F.stddev("total").alias("spread"))
    joined = priced.join(F.broadcast(means), F.col("data.customer") == means["customer"], "left")
    broken, huge = F.col("total").isNull(), F.col("total") > LIMIT
    return joined.select(
        "message_id",
        "lease_token",
        "attempts",
        "retry",
        "data.order",
        "data.customer",
        "total",
        F.round((F.col("total") - F.col("mean")) / F.col("spread"), 3).alias("score"),
        F.when(broken, "nack").when(huge, "bury").otherwise("ack").alias("verdict"),
        F.when(broken, "Unreadable").when(huge, "OverLimit").otherwise("").alias("error_class"),
        F.when(huge, F.concat(F.lit("total "), F.col("total"))).otherwise("").alias("error"),
    )


def main(count: int = 2000) -> tuple[int, dict[str, int]]:
    """Sends, scores and settles; returns how many rows were scored and how the queue stands."""
    with tempfile.TemporaryDirectory() as folder, restante.connect(directory=f"{folder}/server") as post:
        sample(post, count)
        spark = session()
        options = {"url": post.url, "queue": "orders", "consumer": "scoring"}

        def work(batch: DataFrame, number: int) -> None:
            rows = scored(batch).persist()
            # Overwriting its own folder, a batch that is repeated after a crash leaves no second row.
            rows.where("verdict = 'ack'").write.mode("overwrite").parquet(f"{folder}/scores/batch={number}")
            rows.write.format("restante").options(op="settle", **options).mode("append").save()
            rows.unpersist()

        leased = spark.readStream.format("restante").options(kind="leases", maxRowsPerBatch=1000, **options).load()
        query = leased.writeStream.foreachBatch(work).option("checkpointLocation", f"{folder}/checkpoint")
        query.trigger(availableNow=True).start().awaitTermination()

        scores = spark.read.parquet(f"{folder}/scores")
        scores.orderBy(F.desc("score")).select("order", "customer", "total", "score").show(5)
        counts = restante.Admin(post).counts("orders")
        print(f"{scores.count():,} scored, {counts.dead:,} dead, {counts.waiting:,} waiting")
        return scores.count(), {"dead": counts.dead, "waiting": counts.waiting, "acked": counts.totals["acked"]}


if __name__ == "__main__":
    main()
