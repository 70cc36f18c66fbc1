"""Registers the URL scheme `restante://` with Kombu, and a JSON serializer named restante.

Kombu loads this module with its serializers in every program that imports Kombu. Therefore it imports only the standard
library and Kombu's alias table; the transport itself is imported when a URL uses the scheme.
"""

from __future__ import annotations

import json
from typing import Any

from kombu.transport import TRANSPORT_ALIASES

# One transport for both schemes: it turns on TLS itself.
for _scheme in ("restante", "restantes"):
    TRANSPORT_ALIASES.setdefault(_scheme, "restante.celery.transport:SchemeTransport")


def dumps(value: Any) -> str:
    """Compact JSON; a value of a type that JSON does not have is an error, not a guess."""
    return json.dumps(value, ensure_ascii=False, separators=(",", ":"), allow_nan=False)


#: Encoder, decoder, content type and encoding, as Kombu registers them.
SERIALIZER = (dumps, json.loads, "application/vnd.restante+json", "utf-8")
