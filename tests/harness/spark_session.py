"""A Spark that starts fast: for tests, and for the programs that tests start and kill.

Measured in CPU seconds of the JVM, for a session and some twenty small queries: 49 as Spark comes, 30 with the class
archive of `restante.spark.session`, 15 with the archive and Java's quick compiler only. Without generated code it is
one less, which is not worth testing other code than users run.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Final

from pyspark.sql import SparkSession

from restante.spark.session import session
from tests.harness.requirements import require

MASTER: Final = "local[1]"
#: Java's quick compiler only: the thorough one works for programs that run longer than a test. It then gives itself so
#: little room for code that a long run fills it.
QUICK: Final = {
    "spark.driver.extraJavaOptions": "-XX:TieredStopAtLevel=1 -XX:ReservedCodeCacheSize=240m",
    "spark.driver.memory": "1g",
    # Two thirds of the traffic between Python and Java tell the lines of programs, for messages that no test reads.
    "spark.python.sql.dataFrameDebugging.enabled": "false",
}


def quick_session(conf: Mapping[str, str] | None = None) -> SparkSession:
    """A local session; skips the test, or fails it in CI, where Java is missing."""
    require("java")
    return session(master=MASTER, name="tests", conf={**QUICK, **(conf or {})})
