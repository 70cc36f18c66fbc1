"""The planted faults, one module per room; the core's are spread over several."""

from __future__ import annotations

from typing import Final

from tests.mutants.catalogue import (
    bus,
    celery,
    cli,
    compat,
    core,
    core_connections,
    core_data,
    dashboard,
    http,
    rabbitmq,
    rsmq,
    security,
    server,
    spark,
)

FAULTS: Final = (
    *core.FAULTS,
    *core_connections.FAULTS,
    *core_data.FAULTS,
    *cli.FAULTS,
    *http.FAULTS,
    *celery.FAULTS,
    *rsmq.FAULTS,
    *bus.FAULTS,
    *rabbitmq.FAULTS,
    *compat.FAULTS,
    *server.FAULTS,
    *dashboard.FAULTS,
    *spark.FAULTS,
    *security.FAULTS,
)
