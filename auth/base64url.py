"""base64url without padding (RFC 7515 §2), in its one canonical form."""

from __future__ import annotations

import base64
import binascii


def encoded(data: bytes) -> str:
    return base64.urlsafe_b64encode(data).rstrip(b"=").decode()


def decoded(text: str) -> bytes:
    """The bytes; raises ValueError for any other spelling than `encoded` gives.

    The last character of a text may have bits that mean nothing. Were they allowed to be set, one
    signature could be written in several ways.
    """
    try:
        data = base64.b64decode(text + "=" * (-len(text) % 4), altchars=b"-_", validate=True)
    except (binascii.Error, ValueError):
        raise ValueError("not base64url") from None
    if encoded(data) != text:
        raise ValueError("base64url with bits set that mean nothing")
    return data
