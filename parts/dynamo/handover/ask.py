"""What a decode engine asks a prefill engine for, and whether the two fit."""

from __future__ import annotations

from array import array
from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Any, Final

from engines.base import EngineRequest, SamplingParams
from parts.dynamo.handover.channel import ChannelMessage, HandoverError

_TOKEN: Final = "i"
MOST_TOKEN_BYTES: Final = 4 << 20  # a million tokens
_MOST_TEXTS: Final = 64
_MOST_TEXT: Final = 1000  # characters
_MOST_NUMBER: Final = (1 << 31) - 1

Fingerprint = Mapping[str, str]  # what has to be equal for K/V to be exchanged, by its name


@dataclass(frozen=True, slots=True)
class PrefillAsk:
    """The K/V of one prompt, from its block `num_known` on."""

    request: EngineRequest
    fingerprint: Fingerprint
    num_known: int = 0
    takes_nixl: bool = False  # whether it can read blocks by NIXL

    @property
    def fields(self) -> dict[str, Any]:
        request = self.request
        return {
            "fingerprint": dict(self.fingerprint),
            "num_known": self.num_known,
            "takes_nixl": self.takes_nixl,
            "request_id": request.request_id,
            "cache_salt": request.cache_salt,
            "tenant": request.tenant,
            "priority": request.priority,
        }

    @property
    def payload(self) -> bytes:
        """The prompt, as 32-bit numbers in the order of this machine, which Fingerprint names."""
        return array(_TOKEN, self.request.prompt_token_ids).tobytes()

    @classmethod
    def read(cls, message: ChannelMessage) -> PrefillAsk:
        """The ask of a message; raises HandoverError if it cannot be read."""
        fields = message.fields
        try:
            request = EngineRequest(
                request_id=f"prefill of {_text(fields, 'request_id')}",
                prompt_token_ids=tuple(array(_TOKEN, bytes(message.payload))),
                sampling=SamplingParams(max_tokens=1, temperature=0.0),
                priority=_number(fields, "priority"),
                cache_salt=None if fields["cache_salt"] is None else _text(fields, "cache_salt"),
                tenant=_text(fields, "tenant"),
            )
            return cls(
                request,
                _texts(fields, "fingerprint"),
                _number(fields, "num_known", least=0),
                fields["takes_nixl"] is True,
            )
        except (KeyError, TypeError, ValueError) as error:
            raise HandoverError(f"the question cannot be read: {error!r}") from error


def prompt_alone(request: EngineRequest) -> EngineRequest:
    """The request without the tokens of its answer: only the prompt's K/V are handed over."""
    return replace(request, generated_token_ids=())


def differences(ours: Fingerprint, theirs: Fingerprint) -> str:
    """In what our prefill engine and a decode engine differ, in words; empty if they fit."""
    names = sorted({*ours, *theirs})
    return "; ".join(
        f"{name} is {ours.get(name)} for the prefill engine and {theirs.get(name)} for the decode"
        " engine"
        for name in names
        if ours.get(name) != theirs.get(name)
    )


def _text(fields: dict[str, Any], name: str) -> str:
    value = fields[name]
    if not isinstance(value, str):
        raise TypeError(f"{name} is no text")
    return value


def _texts(fields: dict[str, Any], name: str) -> dict[str, str]:
    """Short texts by short names: some are logged."""
    value = fields[name]
    if not isinstance(value, dict) or len(value) > _MOST_TEXTS:
        raise TypeError(f"{name} is no mapping of at most {_MOST_TEXTS} texts")
    for each in (*value, *value.values()):
        if not isinstance(each, str) or len(each) > _MOST_TEXT:
            raise TypeError(f"{name} has other values than texts of {_MOST_TEXT} characters")
    return {**value}


def _number(fields: dict[str, Any], name: str, least: int = -_MOST_NUMBER) -> int:
    value = fields[name]
    if not isinstance(value, int) or isinstance(value, bool):
        raise TypeError(f"{name} is no number")
    if not least <= value <= _MOST_NUMBER:
        raise ValueError(f"{name} is not within {least} and {_MOST_NUMBER}")
    return value
