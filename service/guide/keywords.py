"""The keywords of JSON Schema that the pass knows, and what a single node says by them."""

from __future__ import annotations

from collections.abc import Mapping
from decimal import Decimal
from fractions import Fraction
from math import gcd, lcm
from typing import Any, Final

from service.guide.document import Composed

FORMATS: Final = (
    *("date", "date-time", "duration", "email", "hostname"),
    *("ipv4", "ipv6", "time", "uri", "uuid"),
)
SPEAKS_OF: Final = {
    "object": (
        *("properties", "required", "additionalProperties", "patternProperties"),
        *("propertyNames", "minProperties", "maxProperties"),
    ),
    "array": (*("items", "prefixItems", "additionalItems"), *("minItems", "maxItems")),
    "string": ("minLength", "maxLength", "pattern"),
    "number": (*("minimum", "maximum", "multipleOf"), *("exclusiveMinimum", "exclusiveMaximum")),
}
SIZES: Final = frozenset(
    (*("minLength", "maxLength", "minItems", "maxItems"), *("minProperties", "maxProperties"))
)
UNIONS: Final = ("anyOf", "oneOf")
COMBINING: Final = ("$ref", "allOf", *UNIONS)
OF_VALUES: Final = ("type", "enum", "const")
HEEDED: Final = frozenset(
    (*(key for keys in SPEAKS_OF.values() for key in keys), *COMBINING, *OF_VALUES, "format")
)
AS_THEY_ARE: Final = HEEDED - {
    *("properties", "patternProperties", "prefixItems", "items", "propertyNames", "pattern"),
    *("additionalItems", "additionalProperties", *COMBINING),
}
PLAIN: Final = (AS_THEY_ARE - {"required", "minProperties", "maxProperties", "multipleOf"}) | {
    *("title", "description", "default", "examples", "deprecated", "$comment")
}


def is_nullable(node: Mapping[str, Any]) -> bool:
    """Whether OpenAPI's `nullable` applies; an enum lists null itself."""
    return node.get("nullable") is True and not {"enum", "const"} & node.keys()


def least_multiple(one: Fraction, other: Fraction) -> Fraction:
    numerator = lcm(one.numerator, other.numerator)
    return Fraction(numerator, gcd(one.denominator, other.denominator))


def num_states(step: Fraction) -> int:
    """The digits of a decimal number as an integer: 25 for 0.25, 3 for 0.3, 40 for 40."""
    number = Decimal(step.numerator) / Decimal(step.denominator)
    exponent = number.as_tuple().exponent
    return int(number.scaleb(-min(0, int(exponent))))


def typed(written: dict[str, Any], composed: Composed) -> dict[str, Any]:
    """Add the types that the keywords imply, if none is named."""
    if composed.keywords & set(OF_VALUES):
        return written
    types = [name for name, keys in SPEAKS_OF.items() if composed.keywords & set(keys)]
    return {"type": types, **written} if types else written
