"""The errors of the RSMQ protocol, with its own names and texts.

RestanteError
└── RsmqError
    ├── BadParameter (also InvalidInput)    refused before anything is stored
    │   ├── MissingParameter
    │   ├── InvalidFormat
    │   ├── InvalidValue
    │   │   └── ReservedName                a name that is valid by the rule but collides with a key
    │   ├── NoAttributeSupplied
    │   ├── MessageNotString
    │   └── MessageTooLong (also PayloadTooLarge)
    ├── QueueNotFound (also NotFound)
    └── QueueExists

Failures of the server (`Unavailable`, `QueueFull`, `Unconfirmed`, `Corrupt` …) are errors of `restante.core.errors`.
"""

from __future__ import annotations

from typing import ClassVar

from restante.core.errors import InvalidInput, NotFound, PayloadTooLarge, RestanteError


class RsmqError(RestanteError):
    """The RSMQ protocol refuses this call."""

    #: The protocol's name of the error, as in the Node client's `error.name`.
    name: ClassVar[str] = "rsmqError"


class BadParameter(RsmqError, InvalidInput):
    """A parameter is missing or not valid; nothing was stored. Correct the named parameter."""


class MissingParameter(BadParameter):
    """No <item> supplied"""

    name = "missingParameter"

    def __init__(self, item: str) -> None:
        super().__init__(f"No {item} supplied")
        #: The parameter.
        self.item = item


class InvalidFormat(BadParameter):
    """Invalid <item> format"""

    name = "invalidFormat"

    def __init__(self, item: str, why: str = "") -> None:
        super().__init__(f"Invalid {item} format{why and ': ' + why}")
        self.item = item


class InvalidValue(BadParameter):
    """<item> must be between <min> and <max>"""

    name = "invalidValue"

    def __init__(self, item: str, least: int, most: int, why: str = "") -> None:
        super().__init__(f"{item} must be between {least} and {most}{why and ': ' + why}")
        self.item = item


class ReservedName(InvalidValue):
    """The name is valid by the protocol's rule, but its key is already in use for something else."""

    name = "reservedName"

    def __init__(self, queue: str) -> None:
        BadParameter.__init__(self, f"qname must not be {queue}: the queue would overwrite the set of all queue names")
        self.item = "qname"


class NoAttributeSupplied(BadParameter):
    """No attribute was supplied"""

    name = "noAttributeSupplied"


class MessageNotString(BadParameter):
    """Message must be a string"""

    name = "messageNotString"


class MessageTooLong(BadParameter, PayloadTooLarge):
    """Message too long"""

    name = "messageTooLong"


class QueueNotFound(RsmqError, NotFound):
    """Queue not found"""

    name = "queueNotFound"

    def __init__(self, queue: str = "") -> None:
        super().__init__("Queue not found")
        #: The missing queue.
        self.queue = queue


class QueueExists(RsmqError):
    """Queue exists"""

    name = "queueExists"

    def __init__(self, queue: str = "") -> None:
        super().__init__("Queue exists")
        #: The existing queue.
        self.queue = queue
