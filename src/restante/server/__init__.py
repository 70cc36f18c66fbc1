"""The HTTP server: queues for programs in any language, and the dashboard for operators.

| HTTP | core |
|---|---|
| `POST /api/queues/{queue}/messages` | `send`, `send_many` |
| `POST …/receive` with `wait_seconds` and `acks` | `receive_many` with a timeout and acks |
| `POST …/messages/{id}/ack`, `nack`, `bury`, `release`, `extend`; `POST …/ack` etc. for many | the verdicts |
| `lease_token` in the body | the lease token |
| 409 `LeaseLost` | `LeaseLost` |
| `GET …/messages?state=` | `Admin.messages` |
| `GET /api/journal` as an event stream, `Last-Event-ID` | the journal, `Position` |

Modules: `guard` checks a request first, `access` knows tokens and roles, `routes` holds the routes, `requests` and
`responses` their models, `serializers` converts values to JSON, `journal_feed` follows the journals, `monitor` keeps
counts and trends, `state` is what the routes share, `app` puts it together, and `serving` runs it.
"""

from restante.core.extras import needs_extra

with needs_extra("server", "the server"):
    from restante.server.app import create_app
    from restante.server.serving import Serving
    from restante.server.state import ServerSettings

__all__ = ["ServerSettings", "Serving", "create_app"]
