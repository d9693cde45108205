"""The settings of a deployment of NVIDIA Dynamo, of its front and of its workers."""

from __future__ import annotations

from typing import Any, ClassVar, Literal

from pydantic import Field, SecretStr, ValidationInfo, field_validator

from parts.dynamo.network.runtime import DEFAULT_ENDPOINT
from service.settings.endpoint import checked_endpoint
from service.settings.group import SHAPE, Group
from service.settings.secret import checked_secret

_USED_BY = {
    "kv_handover_endpoint": ("prefill",),
    "kv_handover_timeout_s": ("decode",),
    "kv_handover_transport": ("prefill", "decode"),
}
_PART = r"[A-Za-z0-9_-]+"


class DynamoSettings(Group):
    """NVIDIA Dynamo"""

    secrets: ClassVar = ("kv_handover_secret",)

    dynamo_endpoint: str | None = Field(
        None,
        pattern=rf"^{_PART}\.{_PART}\.{_PART}$",
        json_schema_extra={
            SHAPE: "three names with dots between them; a name has letters, digits, _ and -"
        },
        description="The endpoint of a Dynamo deployment, as `namespace.component.endpoint`. "
        "With it, `harmonium serve` runs no engine and is the front of the deployment's workers. "
        f"The default for `harmonium dynamo-worker` is `{DEFAULT_ENDPOINT}` (docs/scale.md).",
    )
    dynamo_discovery: Literal["etcd", "file"] = Field(
        "etcd",
        description="How front and workers find each other: `etcd` (at `ETCD_ENDPOINTS`), or "
        "`file` on one machine (in the folder `DYN_FILE_KV`).",
    )
    kv_handover_secret: SecretStr | None = Field(
        None,
        min_length=16,
        description="The shared secret with which prefill and decode workers authenticate each "
        "other, at least 16 characters. It must be random, e.g. `openssl rand -base64 32`: anyone "
        "who records a connection can search for a weak one offline.",
    )
    dynamo_role: Literal["prefill", "decode"] | None = Field(
        None,
        description="The role of `harmonium dynamo-worker`: `prefill` computes prompts for decode "
        "workers, and `decode` generates from prompts that prefill workers computed. Default: "
        "both. Needs `NIM_KV_HANDOVER_SECRET`. Native engine only.",
    )
    kv_handover_endpoint: str = Field(
        "tcp://127.0.0.1:5560",
        description="The address from which a prefill worker sends K/V: `tcp://ADDRESS:PORT`, "
        "with one IP address of this machine that the decode workers can reach. Each further "
        "replica uses the next port.",
    )
    kv_handover_timeout_s: float = Field(
        10.0,
        gt=0,
        description="Seconds that a decode worker waits for a prompt's K/V before it computes the "
        "prompt itself.",
    )
    kv_handover_transport: Literal["tcp", "nixl"] = Field(
        "tcp",
        description="The transport of K/V blocks: `tcp` is encrypted. `nixl` uses NVIDIA's "
        "NIXL if both workers have it; its connections are neither encrypted nor authenticated "
        "(docs/scale.md).",
    )

    @field_validator("kv_handover_secret")
    @classmethod
    def _check_handover_secret(cls, value: SecretStr | None) -> SecretStr | None:
        return None if value is None else checked_secret(value)

    @field_validator("dynamo_role")
    @classmethod
    def _check_role(cls, value: str | None, info: ValidationInfo) -> str | None:
        has_secret = info.data.get("kv_handover_secret", "") is not None
        if value is not None and not has_secret:
            raise ValueError("set NIM_KV_HANDOVER_SECRET as well")
        if value is None and info.data.get("kv_handover_secret") is not None:
            raise ValueError("NIM_KV_HANDOVER_SECRET has no effect without NIM_DYNAMO_ROLE")
        return value

    @field_validator(*_USED_BY)
    @classmethod
    def _check_handover_use(cls, value: Any, info: ValidationInfo) -> Any:
        field = str(info.field_name)
        roles = _USED_BY[field]
        is_used = info.data.get("dynamo_role", roles[0]) in roles
        if not is_used and value != cls.model_fields[field].default:
            raise ValueError(f"it has no effect without NIM_DYNAMO_ROLE={' or '.join(roles)}")
        return value

    @field_validator("kv_handover_endpoint")
    @classmethod
    def _check_handover_endpoint(cls, value: str) -> str:
        return checked_endpoint(value)


SETTINGS = DynamoSettings
