"""The planted faults, one module per room; the core's are spread over several."""

from __future__ import annotations

from typing import Final

from tests.mutants.catalogue import (
    bus,
    celery,
    cli,
    compat,
    core,
    core_batches,
    core_connections,
    core_control,
    core_data,
    core_schedules,
    core_tasks,
    dashboard,
    http,
    limits,
    processes,
    rabbitmq,
    rsmq,
    security,
    server,
    spark,
    testing,
)

FAULTS: Final = (
    *core.FAULTS,
    *core_connections.FAULTS,
    *core_batches.FAULTS,
    *core_control.FAULTS,
    *core_data.FAULTS,
    *limits.FAULTS,
    *core_schedules.FAULTS,
    *core_tasks.FAULTS,
    *cli.FAULTS,
    *processes.FAULTS,
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
    *testing.FAULTS,
)
