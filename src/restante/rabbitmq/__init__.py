"""The door to RabbitMQ: which exchanges and queues carry events and calls, and how they come to be there.

RabbitMQ's words end at this door:

| RabbitMQ | Restante |
|---|---|
| routing key | topic, or a delay's bits and where the message goes then |
| binding | subscription |
| delay or retry exchange n, and its queue | rung n of the ladder: holds a message for 2ⁿ eighths of a second |
| x-message-ttl of that queue | rung delay |
| recover exchange | return: hands a message down from the ladder to its queue |
| archive queue | dead |
| dead-letter exchange of a service's queues | door: where what they reject enters the ladder |
| reject, dead letter | nack: the message waits on the broker and comes back to the queue it came from |
| x-death count | attempts |
| alternate exchange, basic.return | Unroutable |
| PRECONDITION_FAILED, ACCESS_REFUSED, NOT_FOUND | TopologyMismatch |
| connection refused, wrong login | Unavailable |

`ladder` and `topology` say what there must be, as data; `declaration` makes it so on a broker, and `leftovers` removes
what earlier versions made. Only the latter two need Kombu, and so are not imported here.
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
