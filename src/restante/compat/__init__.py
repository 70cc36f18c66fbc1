"""Doors for programs written for other systems: change the import, keep the program.

| written for | import instead | room behind it |
|---|---|---|
| celery-amqp-events, `amqp_events` | `restante.compat.amqp_events` | `restante.bus` |
| tchu-tchu, `tchu_tchu` | `restante.compat.tchu_tchu` | `restante.bus` |
| PyRSMQ, `rsmq` | `restante.compat.pyrsmq` | `restante.rsmq` |

Each package is a translation table in its docstring and as little code as the translation needs. On failure it raises
the errors its users already catch, which are also errors of Restante.
"""
