"""Whether what a client sent as schema or tag can be enforced at all, said before it is tried."""

from __future__ import annotations

from typing import Any

from service.errors import RequestError


def check_schema(schema: Any, field: str) -> None:
    """Raise RequestError naming the place unless the schema can be enforced."""
    if not isinstance(schema, dict | bool):
        raise RequestError(f"{field} must be an object.", param=field, code="invalid_schema")


def check_format(format: Any, field: str) -> None:
    """Raise RequestError unless this is a structural tag's format without control tokens."""
    if not isinstance(format, dict):
        raise RequestError(f"{field} must be an object.", param=field, code="invalid_schema")
