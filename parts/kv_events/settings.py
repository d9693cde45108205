"""The settings of KV events."""

from __future__ import annotations

from typing import Annotated, ClassVar

from pydantic import Field, StringConstraints, ValidationInfo, field_validator

from service.settings.endpoint import checked_endpoint
from service.settings.group import SHAPE, Group

Topic = Annotated[str, StringConstraints(pattern=r"^[\x21-\x7e]{0,256}$")]


class KvEventSettings(Group):
    """KV events"""

    of_engine: ClassVar = ("enable_kv_cache_events",)

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
        json_schema_extra={SHAPE: "up to 256 visible ASCII characters, without spaces"},
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


SETTINGS = KvEventSettings
