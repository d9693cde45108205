"""The settings of a deployment of NVIDIA Dynamo, of its front and of its workers."""

from __future__ import annotations

from typing import Literal

from pydantic import Field
from pydantic_settings import BaseSettings

DEFAULT_ENDPOINT = "harmonium.backend.generate"
_PART = r"[A-Za-z0-9_-]+"


class DynamoSettings(BaseSettings):
    """NVIDIA Dynamo"""

    dynamo_endpoint: str | None = Field(
        None,
        pattern=rf"^{_PART}\.{_PART}\.{_PART}$",
        description="The endpoint of a Dynamo deployment, as `namespace.component.endpoint`. "
        "`harmonium serve` then runs no engine: it serves the deployment's workers. "
        f"`harmonium dynamo-worker` joins it; unset, it joins `{DEFAULT_ENDPOINT}` "
        "(docs/scale.md).",
    )
    dynamo_discovery: Literal["etcd", "file"] = Field(
        "etcd",
        description="How front and workers find each other: `etcd` (at `ETCD_ENDPOINTS`), or "
        "`file` on one machine (in the folder `DYN_FILE_KV`).",
    )
