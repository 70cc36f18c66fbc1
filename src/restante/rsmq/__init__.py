"""The door to RSMQ (Redis Simple Message Queue): its queues as they lie in Redis, told in Restante's words.

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

from restante.rsmq.reading import RsmqMessage, queues, split, walk

__all__ = ["RsmqMessage", "queues", "split", "walk"]
