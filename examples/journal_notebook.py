"""A notebook in cells (`# %%`): a day of a small shop, read from its journal by Spark, and what it tells.

Open it in an editor that knows cells, or run it whole: `python -m examples.journal_notebook`.
"""

# %% [markdown]
# # A shop's day in its journal
# Every transition of every message is a line. First some traffic, on a server of our own.

# %%
from __future__ import annotations

import random
import tempfile
from pathlib import Path

from pyspark.sql import functions as F  # noqa: N812 - Spark's own name for it

import restante
from restante.spark.audit import Audit
from restante.spark.pipeline import Pipeline, PipelineOptions
from restante.spark.report import write
from restante.spark.session import session

folder = tempfile.TemporaryDirectory()
post = restante.connect(directory=f"{folder.name}/server")
dice = random.Random(3)
orders = post.queue("orders", max_attempts=2, retry=restante.fixed(0))
mails = post.queue("mails")

for hour in range(24):
    orders.send_many([{"order": hour * 40 + number} for number in range(40)], kind="order.placed")
    for message in orders.receive_many(50):
        if dice.random() < 0.1:
            message.nack(error=TimeoutError("the bank does not answer"))
        else:
            mails.send({"order": message.payload["order"]}, kind="receipt")
            message.ack()
    mails.ack_many(mails.receive_many(30) or [])

# %% [markdown]
# ## The journal is a table

# %%
spark = session()
journal = spark.read.format("restante").option("url", post.url).load().cache()
journal.groupBy("queue").pivot("event").count().fillna(0).show()

# %% [markdown]
# How many attempts did orders need? A line about an ack carries the number of its delivery.

# %%
acked = journal.where("queue = 'orders' AND event = 'acked'")
acked.groupBy("attempts").agg(F.count("*").alias("orders")).orderBy("attempts").show()

# %% [markdown]
# ## The lake
# One call takes what is new through all tables. It may be killed at any moment and run again.

# %%
lake = f"{folder.name}/lake"
summary = Pipeline(spark, PipelineOptions(url=post.url, lake=lake)).run_once()
print(f"{summary.rows:,} lines in {summary.batches} batches")
spark.read.parquet(f"{lake}/gold/causes").select("queue", "error_class", "event", "dead").show()
spark.read.parquet(f"{lake}/gold/drain").drop("at").show()

# %% [markdown]
# ## Does it add up?

# %%
findings = Audit(spark, lake, post).run()
for row in findings.windows:
    print({name: row[name] for name in ("queue", "sent", "acked", "dead", "waiting", "difference")})
assert findings.adds_up

# %% [markdown]
# ## One page for everybody else

# %%
made = write(lake, Path(folder.name) / "report.html")
print(f"{made.size / 1000:.0f} kB, {made.queues} queues")
spark.stop()
post.close()
folder.cleanup()
