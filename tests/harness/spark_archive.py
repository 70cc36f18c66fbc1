"""Makes the class archive of Spark before tests that start Spark in processes of their own: each start is then 6 CPU
seconds shorter. Run as a program it makes the archive if there is none, and does nothing where Spark cannot start.
"""

from __future__ import annotations

import fcntl
import functools
import os
import subprocess
import sys
import tempfile
from pathlib import Path

#: Seconds the making may take on a busy machine.
PATIENCE = 300.0
#: The word that makes this program do the work whose classes the archive then has.
TRAIN = "train"


@functools.cache
def make_archive() -> None:
    """Once per machine; where it cannot be made the tests run without."""
    from restante import RestanteError
    from restante.spark import session

    os.environ["RESTANTE_SPARK_ARCHIVE"] = "1"
    with Path(tempfile.gettempdir(), f"restante-archive-{os.getuid()}.lock").open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)  # several test processes begin at once
        try:
            options = session._archive_options(session._java_version())
        except RestanteError:
            return  # no Java, or an old one: the tests that need it say so
        if any("ArchiveClassesAtExit" in option for option in options):
            program = [sys.executable, "-m", "tests.harness.spark_archive", TRAIN]
            try:
                subprocess.run(program, cwd=Path(__file__).parents[2], timeout=PATIENCE, check=False)
            except subprocess.TimeoutExpired:
                pass


def train() -> None:
    """Some of everything that tests do with Spark but for gold, whose nine tables need few classes of their own."""
    import restante
    from restante.spark.pipeline import Pipeline, PipelineOptions
    from tests.harness.servers import RedisServer
    from tests.harness.spark_session import quick_session
    from tests.spark.lake_proof import audit_only

    spark = quick_session()
    with RedisServer() as server, restante.connect(server.url) as post, tempfile.TemporaryDirectory() as lake:
        queue = post.queue("orders")
        queue.send_many(list(range(20)))
        queue.ack_many(queue.receive_many(10))
        with audit_only():
            Pipeline(spark, PipelineOptions(url=server.url, lake=lake)).run_once()
    gateway = spark.sparkContext._gateway
    spark.stop()
    assert gateway is not None
    gateway.proc.stdin.close()  # Java ends, and writes what it has loaded
    gateway.proc.wait(PATIENCE)


if __name__ == "__main__":
    train() if sys.argv[1:] == [TRAIN] else make_archive()
