"""The licence of a distribution as an SPDX expression; an unknown one is an error."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from packaging.licenses import InvalidLicenseExpression, canonicalize_license_expression

# What distributions say in words of their own.
WORDS = {
    "3-Clause BSD License": "BSD-3-Clause",
    "Apache 2.0": "Apache-2.0",
    "Apache Software License": "Apache-2.0",
    "MIT License": "MIT",
    "Mozilla Public License 2.0 (MPL 2.0)": "MPL-2.0",
    "NVIDIA Proprietary Software": "LicenseRef-NVIDIA-Proprietary",
}
# Read in the components' own licence files, because their metadata does not say it.
READ = {
    "cuda-toolkit": "LicenseRef-NVIDIA-Proprietary",  # names others only
    "jinja2": "BSD-3-Clause",
    "mpmath": "BSD-3-Clause",
    "nvidia-ml-py": "BSD-3-Clause",
    "openssl": "Apache-2.0",  # inside cryptography
    "oss-harmony": "Apache-2.0",
    "prompt-toolkit": "BSD-3-Clause",
    "sympy": "BSD-3-Clause",
    "uvloop": "MIT OR Apache-2.0",
}


class UnknownLicence(Exception):
    """A component whose licence nobody has named."""


def licence_of(distribution: Mapping[str, Any]) -> str:
    """The licence of what inventory.py describes; raises UnknownLicence."""
    name = str(distribution["name"]).lower().replace("_", "-")
    said = [READ.get(name), distribution["expression"], distribution["licence"]]
    for text in (*said, *distribution["classifiers"]):
        if text and (expression := spdx(WORDS.get(text, text))):
            return expression
    raise UnknownLicence(
        f"{name} {distribution['version']} does not say its licence: read it, and add it to READ"
        " in tools/supply/licences.py"
    )


def spdx(text: str) -> str | None:
    """The text as a normal SPDX expression; None for other words."""
    try:
        return str(canonicalize_license_expression(text))
    except InvalidLicenseExpression:
        return None
