"""Thoughts that a client does not want to see, but has to send back.

Anthropic's `display: omitted` leaves the text of thinking blocks out and keeps them whole in
the signature, so that a tool loop goes on with its thoughts. Here too: encoded, not encrypted, for
whoever may have them omitted may have them shown as well.
"""

from __future__ import annotations

import base64
import binascii
from typing import Final

_MARK: Final = "thoughts:"


def sealed(thoughts: str) -> str:
    """The thoughts as a signature."""
    return _MARK + base64.b64encode(thoughts.encode()).decode()


def unsealed(signature: str) -> str:
    """The thoughts in a signature; none in one that is not of this server."""
    if not signature.startswith(_MARK):
        return ""
    try:
        return base64.b64decode(signature[len(_MARK) :], validate=True).decode()
    except (binascii.Error, UnicodeDecodeError):
        return ""
