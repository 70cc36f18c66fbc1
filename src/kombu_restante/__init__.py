"""Makes `restante://` known to Kombu, and gives it a JSON serializer by the name of restante.

Kombu loads this with its serializers whenever it is imported, in every program: so it imports nothing but the standard
library, and the transport itself only where a URL asks for it.
"""

from __future__ import annotations

import json
from typing import Any

from kombu.transport import TRANSPORT_ALIASES

#: Both schemes; TLS is the transport's business.
for _scheme in ("restante", "restantes"):
    TRANSPORT_ALIASES.setdefault(_scheme, "restante.celery.transport:SchemeTransport")


def dumps(value: Any) -> str:
    """Compact JSON; other types than JSON's are an error, not a guess."""
    return json.dumps(value, ensure_ascii=False, separators=(",", ":"), allow_nan=False)


#: Encoder, decoder, content type and encoding, as Kombu registers them.
SERIALIZER = (dumps, json.loads, "application/vnd.restante+json", "utf-8")
