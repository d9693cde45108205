"""What the environment of a process says to any program, not to Harmonium alone."""

from __future__ import annotations

import os


def trust_certificates() -> None:
    """Let every client here use REQUESTS_CA_BUNDLE, where SSL_CERT_FILE is not set."""
    if bundle := os.environ.get("REQUESTS_CA_BUNDLE"):
        os.environ.setdefault("SSL_CERT_FILE", bundle)


def allows_colour() -> bool:
    """Whether a terminal may be shown colours (https://no-color.org)."""
    return not os.environ.get("NO_COLOR")
