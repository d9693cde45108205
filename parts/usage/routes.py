"""The routes of usage: ours, and the one that OpenAI's administrators use."""

from __future__ import annotations

from datetime import date
from typing import Annotated, Any, Final, Literal

import msgspec
from fastapi import Query, Request, Response

from auth.base import Scope
from parts.usage.counting.report import GROUPS, Filter, Group, as_csv, objects, sums
from parts.usage.counting.stored import ledger_of
from parts.usage.schema import UsageList, UsagePage
from parts.usage.store.base import DAY_S, EPOCH, KEPT_DAYS, UsageCounts, date_of
from service.api.common.operations import json_router
from service.errors import RequestError
from service.http.paths import PathRow, RouteGroup, Routes
from service.request import RequestContext
from service.runtime import CurrentContext, CurrentRuntime
from service.work import in_thread

router = json_router("Usage")
_SHOWN: Final[dict[int | str, dict[str, Any]]] = {
    200: {"content": {"text/csv": {"schema": {"type": "string"}}}}
}
# OpenAI's names of our groups; it has others, which are not counted here.
_THEIRS: Final[dict[str, Group]] = {
    "project_id": "tenant",
    "api_key_id": "key",
    "model": "model",
}
_Theirs = Literal["project_id", "api_key_id", "model"]


@router.get("/v1/usage", response_model=UsageList, responses=_SHOWN)
async def get_usage(
    request: Request,
    runtime: CurrentRuntime,
    context: CurrentContext,
    group_by: Annotated[str, Query(description="Of key, tenant, model and day.")] = "day",
    start: Annotated[date | None, Query(description="Default: 30 days before the end.")] = None,
    end: Annotated[date | None, Query(description="The last day. Default: today, UTC.")] = None,
) -> Response:
    """Requests and tokens of the caller's tenant, or with the scope `admin` of all; CSV by
    `Accept: text/csv`."""
    ledger, groups = ledger_of(runtime), _groups(group_by)
    last = ledger.today if end is None else _number(end)
    first = last - 30 if start is None else _number(start)
    if first > last:
        raise _wrong("start", f"start is {date_of(first)}, after the end, {date_of(last)}.")
    days = range(max(first, ledger.today - KEPT_DAYS), min(last, ledger.today + 1) + 1)
    found = await sums(ledger, days, groups, Filter(_visible(context)))
    wants_csv = "text/csv" in request.headers.get("accept", "")

    def written() -> bytes:
        rows = objects(found, groups)
        if wants_csv:
            return as_csv(rows, groups).encode()
        shown = {"start": date_of(first).isoformat(), "end": date_of(last).isoformat()}
        return msgspec.json.encode({"object": "list", **shown, "data": rows})

    kind = "text/csv; charset=utf-8" if wants_csv else "application/json"
    return Response(await in_thread(written), media_type=kind, headers={"Vary": "Accept"})


@router.get("/v1/organization/usage/completions", response_model=UsagePage)
async def get_completions_usage(
    runtime: CurrentRuntime,
    context: CurrentContext,
    start_time: Annotated[int, Query(ge=0, lt=1 << 37, examples=[1767225600])],
    end_time: Annotated[int | None, Query(ge=0, lt=1 << 37)] = None,
    bucket_width: Literal["1d"] = "1d",
    group_by: Annotated[list[_Theirs] | None, Query(alias="group_by[]")] = None,
    api_key_ids: Annotated[list[str] | None, Query(alias="api_key_ids[]", max_length=100)] = None,
    project_ids: Annotated[list[str] | None, Query(alias="project_ids[]", max_length=100)] = None,
    models: Annotated[list[str] | None, Query(alias="models[]", max_length=100)] = None,
    limit: Annotated[int, Query(ge=1, le=31)] = 7,
    page: Annotated[str | None, Query(max_length=32)] = None,
) -> Response:
    """The same by days, in the form of OpenAI's `client.admin.organization.usage.completions`."""
    ledger = ledger_of(runtime)
    last = ledger.today + 1 if end_time is None else -(-end_time // DAY_S)  # exclusive
    oldest = ledger.today - KEPT_DAYS  # before it nothing is kept
    first = max(start_time // DAY_S, oldest) if page is None else _page(page)
    days = range(first, min(first + limit, last, ledger.today + 1))
    groups: list[Group] = ["day", *dict.fromkeys(_THEIRS[name] for name in group_by or ())]
    wanted = Filter(_visible(context), api_key_ids, project_ids, models)
    found = await sums(ledger, days, groups, wanted)

    def written() -> bytes:
        buckets: dict[str, list[dict[str, Any]]] = {date_of(day).isoformat(): [] for day in days}
        for place, counts in found.items():
            of = dict(zip(groups, place, strict=True))
            buckets[str(of["day"])].append(_result(of, counts))
        data = [
            {
                "object": "bucket",
                "start_time": day * DAY_S,
                "end_time": (day + 1) * DAY_S,
                "results": buckets[date_of(day).isoformat()],
            }
            for day in days
        ]
        has_more = days.stop < min(last, ledger.today + 1)
        return msgspec.json.encode(
            {
                "object": "page",
                "data": data,
                "has_more": has_more,
                "next_page": f"page_{days.stop}" if has_more else None,
            }
        )

    return Response(await in_thread(written), media_type="application/json")


def _result(of: dict[Group, object], counts: UsageCounts) -> dict[str, Any]:
    return {
        "object": "organization.usage.completions.result",
        "input_tokens": counts.input_tokens,
        "input_cached_tokens": counts.cached_tokens,
        "output_tokens": counts.output_tokens,
        "num_model_requests": counts.requests,
        "project_id": of.get("tenant"),
        "api_key_id": of.get("key"),
        "model": of.get("model"),
    }


def _visible(context: RequestContext) -> str | None:
    """The tenant whose rows a caller may see; None: all."""
    principal = context.principal
    is_admin = principal is not None and Scope.ADMIN in principal.scopes
    return None if is_admin else context.tenant


def _groups(given: str) -> tuple[Group, ...]:
    names = [name.strip() for name in given[:200].split(",")]
    groups = tuple(group for name in names for group in GROUPS if group == name)
    if len(groups) != len(names) or len(set(groups)) != len(groups):
        raise _wrong("group_by", "group_by has each of key, tenant, model, day at most once.")
    return groups


def _number(day: date) -> int:
    return (day - EPOCH).days


def _page(page: str) -> int:
    number = page.removeprefix("page_")
    if not (number.isascii() and number.isdigit() and len(number) <= 6):
        raise _wrong("page", f"page is {page!r}; send next_page of an answer.")
    return int(number)


def _wrong(param: str, message: str) -> RequestError:
    return RequestError(message, param=param, code="invalid_value")


ROUTES: Final = (
    Routes(
        rows=tuple(
            PathRow(path, Scope.MODELS, is_counted=True)
            for path in ("/v1/usage", "/v1/organization/usage/completions")
        ),
        router=router,
        rank=35,
        groups=(RouteGroup("Usage", "Requests and tokens by key, tenant, model and day.", 27),),
    ),
)
