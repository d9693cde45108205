"""GET /v1/models: a card for each name of the one model."""

from __future__ import annotations

from typing import Annotated, Final

from fastapi import Query

from auth.base import Scope
from service.api.about.codex import codex_model
from service.api.about.schema import ModelCard, ModelList
from service.api.common.operations import json_router
from service.api.common.prompt import runtime_for
from service.http.paths import PathRow, RouteGroup, Routes
from service.runtime import CurrentContext, CurrentRuntime, Runtime

router = json_router("Models")


@router.get("/v1/models")
async def list_models(
    runtime: CurrentRuntime,
    context: CurrentContext,
    client_version: Annotated[
        str | None, Query(description="Codex's: the list has its form as well.")
    ] = None,
) -> ModelList:
    """The one model that is served, under each name that it was given, and its adapters; nothing
    that the caller may not use."""
    model = runtime.model
    names = model.listed if context.may_use(model.names) else ()
    cards = [_card(name, runtime) for name in names]
    for adapter in runtime.adapters.all() if runtime.adapters is not None else ():
        if context.may_use((adapter.name,)):
            cards.append(_card(adapter.name, runtime.with_adapter(adapter)))
    of_codex = None
    if client_version is not None:
        of_codex = [codex_model(card.id, card.max_model_len, at) for at, card in enumerate(cards)]
    return ModelList(data=cards, models=of_codex)


@router.get("/v1/models/{model_id:path}")
async def get_model(model_id: str, runtime: CurrentRuntime, context: CurrentContext) -> ModelCard:
    """The model or the adapter of that id, or of another of the model's names."""
    return _card(model_id, runtime_for(model_id, runtime, context))


def _card(name: str, runtime: Runtime) -> ModelCard:
    runtime.lifecycle.check_started()
    return ModelCard(
        id=name,
        created=runtime.model.created,
        root=runtime.model.adapter.path if runtime.model.adapter else runtime.model.root,
        parent=runtime.model.parent,
        max_model_len=runtime.engine.info.max_model_len,
    )


ROUTES: Final = Routes(
    rows=(
        PathRow("/v1/models", Scope.MODELS, read="models"),
        PathRow("/v1/models/{model_id:path}", Scope.MODELS, read="models"),
    ),
    router=router,
    rank=50,
    groups=(RouteGroup("Models", "The served model.", 50),),
)
