"""The door to RabbitMQ: which exchanges and queues carry events and calls, and how they come to be there.

RabbitMQ's words end at this door:

| RabbitMQ | Restante |
|---|---|
| routing key | topic, or a delay's bits and where the message goes then |
| binding | subscription |
| delay or retry exchange n, and its queue | rung n of a ladder: holds a message for 2ⁿ eighths of a second |
| x-message-ttl of that queue | rung delay |
| recover exchange | return: hands a message down from the ladder to its queue |
| archive queue | dead |
| reject, dead letter | nack: the message waits on the broker and comes back to the queue it came from |
| x-death count | attempts |
| alternate exchange, basic.return | Unroutable |
| PRECONDITION_FAILED, ACCESS_REFUSED, NOT_FOUND | Mismatch |
| connection refused, wrong login | Unavailable |

`topology` says what there must be, as data; `declaring` makes it so on a broker. Only the latter needs Kombu, and so
is not imported here.
"""

from restante.rabbitmq.topology import (
    Binding,
    Exchange,
    Queue,
    Subscribed,
    Topology,
    TopologyOptions,
    climb,
    rungs,
    shared,
    target_of,
    topology,
)

__all__ = [
    "Binding",
    "Exchange",
    "Queue",
    "Subscribed",
    "Topology",
    "TopologyOptions",
    "climb",
    "rungs",
    "shared",
    "target_of",
    "topology",
]
