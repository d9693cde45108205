"""The table of sampling fields and what must be equal to it."""

from __future__ import annotations

from dataclasses import MISSING, fields, replace
from typing import Any

import pytest

import engines.fields
from engines.base import EngineRequest
from engines.errors import InvalidRequest
from engines.fields import FIELDS, SAMPLING_FIELDS, SamplingParams, forbids_prefix_cache, version
from engines.validation import check_request


def test_sampling_params_are_the_table() -> None:
    def default(each: Any) -> Any:
        if each.default_factory is not MISSING:
            return each.default_factory()
        return None if each.default is MISSING else each.default

    assert [(each.name, default(each)) for each in fields(SamplingParams)] == [
        (row.name, row.default) for row in SAMPLING_FIELDS
    ]
    kinds = {each.name: str(each.type).partition("[")[0] for each in fields(SamplingParams)}
    for row in SAMPLING_FIELDS:
        assert row.kind.__name__ in kinds[row.name].replace("Mapping", "dict"), row.name


def test_a_request_has_the_other_fields_that_engines_get() -> None:
    defaults = {each.name: each.default for each in fields(EngineRequest)}
    rows = [row for row in FIELDS if row.holder == "request"]
    assert {row.name: row.default for row in rows}.items() <= defaults.items()


@pytest.mark.parametrize("row", [row for row in SAMPLING_FIELDS if row.low is not None])
def test_engines_check_both_bounds(row: engines.fields.Field) -> None:
    """And name field, value and bound."""
    named: dict[Any, Any] = {"max_tokens": 8, "vocab_size": 100}
    highest = named.get(row.high, row.high)
    assert row.low is not None
    for value in (row.low - 1, None if highest is None else highest + 1):
        if value is None:
            continue
        changes: dict[str, Any] = {row.name: value}
        sampling = replace(SamplingParams(8), **changes)
        with pytest.raises(InvalidRequest, match=rf"^{row.name} is {value}; use {row.low} "):
            check_request(EngineRequest("r", (1,), sampling), 100, 50)


def test_another_table_has_another_version(monkeypatch: pytest.MonkeyPatch) -> None:
    mine = version()
    assert mine == version()
    monkeypatch.setattr(engines.fields, "FIELDS", FIELDS[1:])
    assert version() != mine


def test_log_probabilities_of_a_prompt_need_all_of_it_computed() -> None:
    assert not forbids_prefix_cache(SamplingParams(8, seed=1, logprobs=3))
    assert forbids_prefix_cache(SamplingParams(8, prompt_logprobs=0))


def test_whole_numbers_of_clients_have_bounds_that_the_wire_can_carry() -> None:
    rows = [*(row for row in FIELDS if row.api), *(part for row in FIELDS for part in row.parts)]
    numbers = [row for row in rows if row.kind is int]
    assert numbers
    assert [row.name for row in numbers if not {"le", "lt"} & row.bounds.keys()] == []
