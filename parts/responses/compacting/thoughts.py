"""`reasoning.encrypted_content`: thoughts that clients keep, and send back in a tool loop."""

from __future__ import annotations

import logging
from dataclasses import replace
from typing import Final

from parts.responses.answer.output import Seal
from parts.responses.items import HistoryItem
from parts.responses.past import Groups
from service.request import RequestContext
from service.runtime import Runtime
from service.sealing import NotSealed, Seals, is_sealed
from service.store.base import StoreError

log = logging.getLogger(__name__)

_PURPOSE: Final = "reasoning"


async def seal_of_thoughts(runtime: Runtime, context: RequestContext) -> Seal | None:
    """What seals thoughts for this caller; None where nothing can: the answer has them anyway."""
    seals = runtime.of(Seals)
    if seals is None:
        return None
    try:
        return await seals.sealer(_PURPOSE, context.tenant)
    except StoreError as error:
        log.debug("thoughts are not sealed: %s", error)
        return None


async def with_thoughts(groups: Groups, seals: Seals | None, context: RequestContext) -> Groups:
    """The history with the thoughts of items that have them sealed alone.

    Those of other servers, and of other tenants, cannot be read and say nothing.
    """
    if seals is None or not any(_is_sealed(entry) for group in groups for entry in group):
        return groups
    return [[await _opened(entry, seals, context) for entry in group] for group in groups]


def _is_sealed(entry: HistoryItem) -> bool:
    item = entry.item
    has_text = item["type"] == "reasoning" and bool(item.get("content"))
    return (
        item["type"] == "reasoning"
        and not has_text
        and is_sealed(item.get("encrypted_content") or "")
    )


async def _opened(entry: HistoryItem, seals: Seals, context: RequestContext) -> HistoryItem:
    if not _is_sealed(entry):
        return entry
    try:
        text = await seals.open(_PURPOSE, context.tenant, entry.item["encrypted_content"])
    except NotSealed:
        return entry
    content = [{"type": "reasoning_text", "text": text}]
    return replace(entry, item={**entry.item, "content": content})
