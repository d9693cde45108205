"""GET /v1/models."""

from __future__ import annotations

from fastapi import APIRouter

from service.api.about.schema import ModelCard, ModelList
from service.api.common.schema import ERRORS
from service.errors import RequestError
from service.runtime import CurrentContext, CurrentRuntime, Runtime

router = APIRouter(responses=ERRORS)


@router.get("/v1/models")
async def list_models(runtime: CurrentRuntime, context: CurrentContext) -> ModelList:
    """The one model that is served; nothing for who may not use it."""
    return ModelList(data=[_card(runtime)] if context.may_use(runtime.model.id) else [])


@router.get("/v1/models/{model_id:path}")
async def get_model(model_id: str, runtime: CurrentRuntime, context: CurrentContext) -> ModelCard:
    """The model of that id."""
    if model_id != runtime.model.id:
        raise RequestError(
            f"The model {model_id[:128]!r} is not served here; use {runtime.model.id!r}.",
            param="model",
            code="model_not_found",
            status=404,
        )
    context.check_may_use(model_id)
    return _card(runtime)


def _card(runtime: Runtime) -> ModelCard:
    runtime.lifecycle.check_started()
    return ModelCard(
        id=runtime.model.id,
        created=runtime.model.created,
        root=runtime.model.root,
        max_model_len=runtime.engine.info.max_model_len,
    )
