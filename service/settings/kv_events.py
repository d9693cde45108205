"""The settings of KV events."""

from __future__ import annotations

import re
from ipaddress import ip_address
from typing import Annotated

from pydantic import Field, StringConstraints, ValidationInfo, field_validator
from pydantic_settings import BaseSettings

# Kubernetes writes a pod's IPv6 address without brackets: tcp://$(POD_IP):5557.
_ENDPOINT = re.compile(
    r"tcp://(?:\[(?P<ipv6>[0-9a-fA-F:.]+)\]|(?P<bare>[0-9a-fA-F]*:[0-9a-fA-F:.]+)|(?P<ipv4>[0-9.]+))"
    r":(?P<port>\d+)"
)
Topic = Annotated[str, StringConstraints(pattern=r"^[\x21-\x7e]{0,256}$")]


class KvEventSettings(BaseSettings):
    """KV events"""

    enable_kv_cache_events: bool = Field(
        False,
        description="Publish which blocks the prefix cache stores and evicts, in vLLM's ZeroMQ "
        "format, for routers such as llm-d's and NVIDIA Dynamo's. The messages contain the tokens "
        "of prompts unencrypted. Native engine only (docs/guides/kv-events.md).",
    )
    kv_events_endpoint: str = Field(
        "tcp://127.0.0.1:5557",
        description="Address on which events are published: `tcp://ADDRESS:PORT`, with one IP "
        "address of this machine. Each further replica uses the next port.",
    )
    kv_events_replay_endpoint: str | None = Field(
        None,
        description="Address from which subscribers request messages that they missed, in the "
        "same form. Default: none.",
    )
    kv_events_topic: Topic = Field(
        "",
        description="The topic of the messages. llm-d expects `kv@POD@MODEL`, e.g. "
        "`kv@10.0.0.7:8000@gpt-oss-20b`.",
    )

    @field_validator("kv_events_endpoint", "kv_events_replay_endpoint", "kv_events_topic")
    @classmethod
    def _check_use(cls, value: str | None, info: ValidationInfo) -> str | None:
        is_enabled = info.data.get("enable_kv_cache_events", True)
        if not is_enabled and value != cls.model_fields[str(info.field_name)].default:
            raise ValueError("it has no effect without NIM_ENABLE_KV_CACHE_EVENTS=1")
        return value

    @field_validator("kv_events_endpoint", "kv_events_replay_endpoint")
    @classmethod
    def _check_endpoint(cls, value: str | None) -> str | None:
        return None if value is None else checked_endpoint(value)


def checked_endpoint(value: str) -> str:
    """The endpoint, an IPv6 address in brackets; raises ValueError unless it names one IP address
    and a port."""
    found = _ENDPOINT.fullmatch(value)
    if found is None:
        raise ValueError("write tcp://ADDRESS:PORT with an IP address; IPv6 as tcp://[::1]:5557")
    address = ip_address(found["ipv6"] or found["bare"] or found["ipv4"])
    if (getattr(address, "ipv4_mapped", None) or address).is_unspecified:
        raise ValueError("this is every address of the machine; name one of them")
    if not 1 <= int(found["port"]) <= 65535:
        raise ValueError("the port must be 1 to 65535")
    return f"tcp://[{found['bare']}]:{found['port']}" if found["bare"] else value
