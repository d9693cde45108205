"""API keys: who gets in, and what is kept of the keys."""

from __future__ import annotations

import pytest

from auth.authenticators import ApiKeys
from auth.base import Credentials, InvalidCredentials


@pytest.mark.parametrize("scheme", ["bearer", "x-api-key"])
@pytest.mark.parametrize("key", ["first", "second"])
async def test_each_key_is_accepted_under_either_scheme(scheme: str, key: str) -> None:
    assert await ApiKeys(["first", "second"]).authenticate(Credentials(scheme, key)) is not None


async def test_principals_differ_by_key_and_do_not_show_it() -> None:
    keys = ApiKeys(["first-secret", "second-secret"])
    first = await keys.authenticate(Credentials("bearer", "first-secret"))
    second = await keys.authenticate(Credentials("bearer", "second-secret"))
    assert first is not None
    assert second is not None
    assert first.id != second.id
    assert "secret" not in first.id


@pytest.mark.parametrize("key", ["", "firs", "first ", "FIRST", "f\udcffirst"])
async def test_anything_else_is_rejected_without_repeating_it(key: str) -> None:
    with pytest.raises(InvalidCredentials) as caught:
        await ApiKeys(["first"]).authenticate(Credentials("bearer", key))
    assert "first" not in str(caught.value)


async def test_another_scheme_is_left_to_others() -> None:
    assert await ApiKeys(["first"]).authenticate(Credentials("basic", "first")) is None


def test_the_keys_themselves_are_not_kept() -> None:
    assert "first-secret" not in repr(vars(ApiKeys(["first-secret"])))
