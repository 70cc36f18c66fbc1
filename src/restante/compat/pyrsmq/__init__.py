"""The API of PyRSMQ: a program written for it runs with `rsmq` in its imports changed to `restante.compat.pyrsmq`.

| PyRSMQ | Restante |
|---|---|
| `from rsmq import RedisSMQ`, `from rsmq.rsmq import RedisSMQ` | the same names in this package |
| `from rsmq.consumer import RedisSMQConsumer`, `RedisSMQConsumerThread` | `consumer` |
| `from rsmq.cmd import …`, `from rsmq.cmd.exceptions import …` | `cmd`: the commands and the errors |
| `createQueue(…)` … `execute()` | `Rsmq.create_queue` and so on, see `restante.rsmq` |
| `exceptions(False)` | the error is logged and False returned |
| `ts` of a received message | `ts`, and the same value as `fr` |

PyRSMQ's defects are not reproduced: a queue's maxsize is 65536 by default and is enforced, unknown keywords and bad
values raise, an empty message is a message, deleting a message that was never received succeeds, setting attributes of
a missing queue does not create it, and realtime is published. docs/guide/rsmq.md lists all differences. On failure a
command raises an error of PyRSMQ's name.
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
