"""Dynamo's runtime: discovery and the connections between processes."""

from __future__ import annotations

import asyncio
from typing import Any, Final, Literal
from uuid import uuid4

from engines.errors import EngineStartError

Discovery = Literal["etcd", "file"]
DEFAULT_ENDPOINT: Final = "harmonium.backend.generate"


def connect(discovery: Discovery) -> Any:
    """Join the deployment; raises EngineStartError with Dynamo's reason.

    Where etcd, the file store and the sockets are, Dynamo reads in its own variables.
    """
    from dynamo._core import DistributedRuntime

    try:
        loop = asyncio.get_running_loop()
        return DistributedRuntime(loop, discovery, "tcp", event_plane="zmq")
    except Exception as error:  # it has no class of its own
        raise EngineStartError(
            f"Dynamo's runtime cannot start with {discovery} discovery: {error}"
        ) from error


def new_context() -> Any:
    """What a request is cancelled by; Dynamo wants another id for each."""
    from dynamo._core import Context

    return Context(uuid4().hex)
