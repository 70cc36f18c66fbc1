"""Compatibility packages: programs written for other systems run with their imports changed.

| written for | import instead | implemented by |
|---|---|---|
| celery-amqp-events, `amqp_events` | `restante.compat.amqp_events` | `restante.bus` |
| tchu-tchu, `tchu_tchu` | `restante.compat.tchu_tchu` | `restante.bus` |
| PyRSMQ, `rsmq` | `restante.compat.pyrsmq` | `restante.rsmq` |

Each package's docstring is its translation table. On failure it raises the errors that its users already catch, which
are also errors of Restante.
"""
