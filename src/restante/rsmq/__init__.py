"""The door to RSMQ (Redis Simple Message Queue): a client of the protocol, and its queues told in Restante's words.

`Rsmq` and `AsyncRsmq` speak the protocol in its own words, beside Node's client and PyRSMQ; everything else in the
house tells of these queues in the words of the right column.

| RSMQ | Restante |
|---|---|
| ns | namespace |
| qname | queue |
| message | payload |
| sent (inside the id) | sent_at |
| vt | lease_seconds |
| delay | delay_seconds |
| maxsize | max_payload_bytes |
| rc | attempts |
| fr | first_received_at |
| score in the sorted set | due_at, and lease_expires_at while leased |
| sendMessage | send |
| receiveMessage | receive |
| popMessage | receive + ack |
| deleteMessage | ack |
| changeMessageVisibility | extend |

The protocol has no lease token and no states beyond what score and receive count tell: scheduled (never received,
not yet due), ready (due) and leased (received, not yet due again). Nothing in it is ever retrying, dead or done.
"""

from restante.rsmq.bridge import Bridge, Bridged
from restante.rsmq.calls import QueueAttributes, RsmqReceived
from restante.rsmq.client import AsyncRsmq, Rsmq
from restante.rsmq.consumer import AsyncRsmqConsumer, RsmqConsumer
from restante.rsmq.errors import (
    BadParameter,
    InvalidFormat,
    InvalidValue,
    MessageNotString,
    MessageTooLong,
    MissingParameter,
    NoAttributeSupplied,
    QueueExists,
    QueueNotFound,
    ReservedName,
    RsmqError,
)
from restante.rsmq.reader import RsmqMessage, queues, split, walk

__all__ = [
    "AsyncRsmq",
    "AsyncRsmqConsumer",
    "BadParameter",
    "Bridge",
    "Bridged",
    "InvalidFormat",
    "InvalidValue",
    "MessageNotString",
    "MessageTooLong",
    "MissingParameter",
    "NoAttributeSupplied",
    "QueueAttributes",
    "QueueExists",
    "QueueNotFound",
    "ReservedName",
    "Rsmq",
    "RsmqConsumer",
    "RsmqError",
    "RsmqMessage",
    "RsmqReceived",
    "queues",
    "split",
    "walk",
]
