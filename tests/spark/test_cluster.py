"""The same job on several executors, and journals on several masters: exact counts, whichever executor reads a part."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import zipfile
from collections import Counter
from pathlib import Path

import pyspark
import pytest
from pyspark.sql import SparkSession

import restante
from restante import Client
from restante.spark import session
from restante.spark.pipeline import Pipeline, PipelineOptions
from tests.harness.cluster import RedisCluster3
from tests.harness.deadlines import PATIENCE
from tests.harness.processes import CHECKOUT
from tests.harness.requirements import require
from tests.harness.servers import RedisServer
from tests.harness.spark_session import QUICK
from tests.spark.lake_proof import assert_every_line_once, assert_tables_follow, written

JOB = Path(__file__).with_name("submitted_job.py")


def packed(folder: Path) -> Path:
    """The package as one file, as it is shipped to executors."""
    made = folder / "restante.zip"
    with zipfile.ZipFile(made, "w") as zip:
        for package in ("restante", "pyspark_restante"):
            for file in sorted((CHECKOUT / "src" / package).rglob("*")):
                if file.is_file() and "__pycache__" not in file.parts:
                    zip.write(file, file.relative_to(CHECKOUT / "src"))
    return made


#: Silver and gold are Spark's own work, for which an executor needs no package: they take half of the job's time.
@pytest.mark.parametrize("layers", ["bronze", pytest.param("all", marks=pytest.mark.chaos)])
def test_two_executors_with_the_package_shipped_as_a_zip_take_every_line_once(
    spark: SparkSession, server: RedisServer, post: Client, lake: Path, tmp_path: Path, layers: str
) -> None:
    require("java")
    for name, thousands in (("orders", 6), ("mail", 1)):
        for _ in range(thousands):
            post.queue(name).send_many(list(range(1000)))
    post.queue("orders").ack_many(post.queue("orders").receive_many(500))
    package = packed(tmp_path)
    java = " ".join([QUICK["spark.driver.extraJavaOptions"], *session._archive_options(session._java_version())])
    # As on a machine that has what the package needs, but not the package.
    outside = {key: value for key, value in os.environ.items() if not key.startswith(("SPARK_", "PYTHONPATH"))}
    ran = subprocess.run(
        [
            Path(pyspark.__path__[0], "bin", "spark-submit"),
            "--master",
            "local-cluster[2,1,1024]",
            "--py-files",
            package,
            "--driver-java-options",
            java,
            "--conf",
            f"spark.executor.extraJavaOptions={java}",
            "--conf",
            "spark.ui.enabled=false",
            JOB,
            server.url,
            lake,
            layers,
        ],
        env={
            **outside,
            "SPARK_HOME": str(session._home() or pyspark.__path__[0]),
            "PYSPARK_PYTHON": sys.executable,
            "PYSPARK_DRIVER_PYTHON": sys.executable,
        },
        cwd=tmp_path,
        capture_output=True,
        text=True,
        timeout=PATIENCE,
    )
    assert ran.returncode == 0, ran.stderr[-4000:]
    told = json.loads(ran.stdout.splitlines()[-1])
    assert told["master"] == "local-cluster[2,1,1024]"
    assert len(told["executors"]) == 2
    assert all("restante.zip" in file for file in told["packages"]), told["packages"]
    wanted = written(post)
    assert told["read"] == Counter(queue for queue, _, _ in wanted)
    assert told["rows"] == len(wanted)
    assert told["batches"] > 1
    assert_every_line_once(spark, lake, wanted)
    if layers == "all":
        assert_tables_follow(lake)


def test_journals_on_three_masters_are_read_and_taken_exactly(spark: SparkSession, lake: Path) -> None:
    with RedisCluster3() as cluster, restante.connect(cluster.url) as post:
        names = [f"queue-{number}" for number in range(6)]
        owners = {cluster.node_of_key(f"restante:{{{name}}}:journal").port for name in names}
        assert len(owners) == 3
        for number, name in enumerate(names):
            queue = post.queue(name)
            queue.send_many(list(range(100 * (number + 1))))
            queue.ack_many(queue.receive_many(50))
        wanted = written(post)
        options = PipelineOptions(url=cluster.url, lake=str(lake), batch_rows=900, num_partitions=3)
        work = Pipeline(spark, options)
        read = spark.read.format("restante").options(url=cluster.url, numPartitions=3).load()
        found = Counter((row.queue, row.incarnation, row.position) for row in read.collect())
        assert found == wanted
        assert work.run_once().rows == len(wanted)
        assert_every_line_once(spark, lake, written(post))
        assert_tables_follow(lake)
