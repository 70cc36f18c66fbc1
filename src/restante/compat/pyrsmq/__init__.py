"""RSMQ in PyRSMQ's words: a program written for it runs with `rsmq` in its imports changed to `restante.compat.pyrsmq`.

| PyRSMQ | here |
|---|---|
| `from rsmq import RedisSMQ`, `from rsmq.rsmq import RedisSMQ` | the same names in this package |
| `from rsmq.consumer import RedisSMQConsumer`, `RedisSMQConsumerThread` | `consumer` |
| `from rsmq.cmd import …`, `from rsmq.cmd.exceptions import …` | `cmd`: the commands and the errors |
| `createQueue(…)` … `execute()` | `Rsmq.create_queue` and so on, see `restante.rsmq` |
| `exceptions(False)` | the error is logged and False returned |
| `ts` of a received message | `fr`, which is there too |

What PyRSMQ does by mistake is not done here: a queue's maxsize is 65536 by default and is enforced, unknown keywords
and bad values raise, an empty message is a message, deleting a message that was never received succeeds, setting
attributes of a missing queue creates none, and realtime is published. docs/guide/rsmq.md lists all differences.
"""

from restante.compat.pyrsmq.cmd.exceptions import (
    InvalidParameterValue,
    NoMessageInQueue,
    QueueAlreadyExists,
    QueueDoesNotExist,
    RedisSMQException,
)
from restante.compat.pyrsmq.consumer import RedisSMQConsumer, RedisSMQConsumerThread
from restante.compat.pyrsmq.rsmq import RedisSMQ

__all__ = [
    "InvalidParameterValue",
    "NoMessageInQueue",
    "QueueAlreadyExists",
    "QueueDoesNotExist",
    "RedisSMQ",
    "RedisSMQConsumer",
    "RedisSMQConsumerThread",
    "RedisSMQException",
]
