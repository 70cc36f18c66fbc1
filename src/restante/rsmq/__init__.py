"""A client for RSMQ (Redis Simple Message Queue), a bridge to native queues, and readers of RSMQ queues.

`Rsmq` and `AsyncRsmq` use the protocol's own words and share queues with Node's client and PyRSMQ. The rest of Restante
describes these queues in the words of the right column.

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

The protocol has no lease token. A message's state follows from its score and receive count: scheduled (never received,
not yet due), ready (due) or leased (received, not yet due again). No message is ever retrying, dead or done.
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
