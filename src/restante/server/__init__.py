"""The server: queues over HTTP for programs in any language, and the dashboard for people.

| HTTP | core |
|---|---|
| `POST /api/queues/{queue}/messages` | `send`, `send_many` |
| `POST …/receive` with `wait_seconds` | `receive_many` with a timeout |
| `POST …/messages/{id}/ack`, `nack`, `bury`, `release`, `extend`, or `POST …/ack` and so on for many | the verdicts |
| `lease_token` in the body | the delivery's lease |
| 409 `LeaseLost` | `LeaseLost` |
| `GET …/messages?state=` | `Admin.messages` |
| `GET /api/journal` as events, `Last-Event-ID` | the journal, `Position` |

Rooms: `guard` looks at a request before anything else, `access` knows who may do what, `traffic`, `looking` and
`operating` are the routes, `shapes` and `answers` what goes in and out, `live` follows the journals, `sampling` keeps
figures, `serving` runs it all.
"""

from restante.core.extras import needs_extra

with needs_extra("server", "the server"):
    from restante.server.app import create_app
    from restante.server.serving import Serving
    from restante.server.state import ServerSettings

__all__ = ["ServerSettings", "Serving", "create_app"]
