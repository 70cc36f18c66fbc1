"""Makes the class archive of Spark before tests that start Spark in processes of their own: each start is then 6 CPU
seconds shorter. Run as a program it does some of everything, so that the archive has the classes that tests need.
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


@functools.cache
def make_archive() -> None:
    """Once per machine; where it cannot be made the tests run without."""
    from restante.spark import session

    os.environ["RESTANTE_SPARK_ARCHIVE"] = "1"
    with Path(tempfile.gettempdir(), f"restante-archive-{os.getuid()}.lock").open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)  # several test processes begin at once
        options = session._archive_options(session._java_version())
        if any("ArchiveClassesAtExit" in option for option in options):
            subprocess.run([sys.executable, __file__], cwd=Path(__file__).parents[2], timeout=PATIENCE, check=False)


def main() -> None:
    sys.path.insert(0, os.getcwd())
    import restante
    from restante.spark.pipeline import Pipeline, PipelineOptions
    from tests.harness.servers import RedisServer
    from tests.harness.spark_session import quick_session

    spark = quick_session()
    with RedisServer() as server, restante.connect(server.url) as post, tempfile.TemporaryDirectory() as lake:
        queue = post.queue("orders")
        queue.send_many(list(range(20)))
        queue.ack_many(queue.receive_many(10))
        Pipeline(spark, PipelineOptions(url=server.url, lake=lake)).run_once()
    gateway = spark.sparkContext._gateway
    spark.stop()
    assert gateway is not None
    gateway.proc.stdin.close()  # Java ends, and writes what it has loaded
    gateway.proc.wait(PATIENCE)


if __name__ == "__main__":
    main()
