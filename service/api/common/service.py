"""The answers of the routes about the service itself."""

from __future__ import annotations

from typing import Literal

from service.api.common.common import ResponseModel


class ModelCard(ResponseModel):
    """One served model, in vLLM's shape."""

    id: str
    object: Literal["model"] = "model"
    created: int
    owned_by: str = "harmonium"
    root: str
    parent: None = None
    max_model_len: int


class ModelList(ResponseModel):
    object: Literal["list"] = "list"
    data: list[ModelCard]


class Health(ResponseModel):
    object: Literal["health.response"] = "health.response"
    message: str


class Version(ResponseModel):
    release: str
    api: str


class ModelInfo(ResponseModel):
    shortName: str
    modelUrl: str


class Metadata(ResponseModel):
    """What runs here, in NIM's spelling."""

    version: str
    modelInfo: list[ModelInfo]
    selectedModelProfileId: str
