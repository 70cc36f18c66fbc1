"""RabbitMQ: the exchanges and queues that carry events and calls, and their declaration.

RabbitMQ's words, and Restante's:

| RabbitMQ | Restante |
|---|---|
| routing key | topic, or a delay's bits and where the message goes then |
| binding | subscription |
| delay or retry exchange n, and its queue | rung n of the ladder: holds a message for 2ⁿ eighths of a second |
| x-message-ttl of that queue | rung delay |
| recover exchange | return: routes a message from the ladder to its queue |
| archive queue | dead |
| dead-letter exchange of a service's queues | reject exchange: routes rejected messages to the ladder |
| reject, dead letter | nack: the message waits on the broker and comes back to the queue it came from |
| x-death count | attempts |
| alternate exchange, basic.return | Unroutable |
| PRECONDITION_FAILED, ACCESS_REFUSED, NOT_FOUND | TopologyMismatch |
| connection refused, wrong login | Unavailable |

`ladder` and `topology` describe the objects, as data; `declaration` declares them on a broker, and `leftovers` removes
those of earlier versions. The latter two need Kombu, and so are not imported here.
"""

from restante.rabbitmq.ladder import Ladder, rungs, target_of
from restante.rabbitmq.topology import (
    Binding,
    Exchange,
    Queue,
    Subscribed,
    Topology,
    TopologyOptions,
    shared,
    topology,
)

__all__ = [
    "Binding",
    "Exchange",
    "Ladder",
    "Queue",
    "Subscribed",
    "Topology",
    "TopologyOptions",
    "rungs",
    "shared",
    "target_of",
    "topology",
]
