"""The answer at the pages' paths when the operator disabled them."""

from __future__ import annotations

from typing import NoReturn

from fastapi import APIRouter

from service.errors import RequestError

router = APIRouter(include_in_schema=False)


@router.get("/", response_model=None)
@router.get("/docs", response_model=None)
async def page() -> NoReturn:
    """Answer a page's path with a 404 that says where to go instead."""
    raise RequestError(
        "The pages of this server are disabled (NIM_DISABLE_PLAYGROUND). The API is under /v1: "
        "GET /v1/models lists what is served, GET /openapi.json the routes.",
        status=404,
        code="route_not_found",
    )
