"""PyJWT as a second opinion: nothing that we accept may it refuse, and the other way round for
tokens in the shape that we ask for."""

from __future__ import annotations

import asyncio
import json
import time
from typing import Any

import jwt
import pytest
from hypothesis import given
from hypothesis import strategies as st

from auth.base import Credentials, InvalidCredentials
from parts.jwt.bearer import JwtBearer
from parts.jwt.jwk import keys_of
from parts.jwt.key_source import OneKey
from parts.jwt.verify import TokenPolicy
from tests.examples import any_text, examples

NOW = int(time.time())
JUNK: st.SearchStrategy[Any] = (
    st.none() | st.booleans() | st.integers() | any_text(max_size=8) | st.floats() | st.just([])
)
TIMES = st.integers(-200, 200).map(lambda offset_s: NOW + offset_s) | st.floats(
    NOW - 200.0, NOW + 200.0, allow_nan=False
)
CLAIMS = st.fixed_dictionaries(
    {},
    optional={
        "exp": TIMES | JUNK,
        "iat": TIMES | JUNK,
        "nbf": TIMES | JUNK,
        "aud": st.sampled_from(["urn:harmonium", ["urn:harmonium", "b"], "b", []]) | JUNK,
        "iss": st.sampled_from(["https://idp.example", "https://idp.example/"]) | JUNK,
        "sub": st.sampled_from(["ann", ""]) | JUNK,
        "scope": any_text(max_size=20) | JUNK,
        "tenant": any_text(max_size=8) | JUNK,
    },
)
HEADERS = st.fixed_dictionaries(
    {},
    optional={
        "alg": st.sampled_from(["RS256", "ES256", "HS256", "none", "RS384", "PS256", ""]) | JUNK,
        "typ": st.sampled_from(["JWT", "at+jwt", "JOSE"]) | JUNK,
        "kid": st.sampled_from(["rsa1", "ec1", "x"]) | JUNK,
        "crit": JUNK | st.just(["b64"]),
        "b64": st.booleans(),
        "zip": st.just("DEF"),
    },
)


def ours(idp: Any, token: str) -> bool:
    key = keys_of(idp.jwks()).keys["rsa1"]
    bearer = JwtBearer(OneKey(key), TokenPolicy(idp.issuer, idp.audience, 3600))
    try:
        return asyncio.run(bearer.authenticate(Credentials("bearer", token))) is not None
    except InvalidCredentials:
        return False


def theirs(idp: Any, token: str) -> bool:
    try:
        jwt.decode(
            token,
            idp.rsa.public_key(),
            algorithms=["RS256"],
            audience=idp.audience,
            issuer=idp.issuer,
            leeway=30,
            options={"require": ["exp", "aud", "iss", "sub"]},
        )
    except (jwt.PyJWTError, ValueError, OverflowError):
        return False
    return True


@given(header=HEADERS, changes=CLAIMS)
@examples(120)
def test_what_we_accept_so_does_pyjwt(idp: Any, header: Any, changes: Any) -> None:
    token = token_of(idp, header, changes)
    assert not ours(idp, token) or theirs(idp, token)


@given(
    offset_s=st.sampled_from([-100, -40, -20, 0, 20, 40, 100]),
    life_s=st.integers(1, 300),
    changes=CLAIMS.filter(lambda claims: not {"exp", "iat", "nbf", "tenant"} & claims.keys()),
    typ=st.sampled_from(["JWT", "at+jwt"]),
    has_iat=st.booleans(),
)
@examples(60)
def test_we_agree_on_well_formed_tokens(
    idp: Any, offset_s: int, life_s: int, changes: Any, typ: str, has_iat: bool
) -> None:
    now = int(time.time())
    times = {"iat": now + offset_s, "exp": now + offset_s + life_s}
    if not has_iat:
        del times["iat"]
    if abs(times["exp"] - now + 30) <= 2:
        return  # the clock may pass the edge between the two
    token = token_of(idp, {"typ": typ}, times | changes)
    has_subject = changes.get("sub", "ann") != ""  # which PyJWT takes for one
    assert ours(idp, token) == (theirs(idp, token) and has_subject)


@given(
    text=any_text(max_size=200) | st.binary(max_size=200).map(lambda data: data.decode("latin-1"))
)
@examples(80)
def test_no_text_is_a_token(idp: Any, text: str) -> None:
    assert not ours(idp, text)


@given(data=st.data())
@examples(60)
def test_no_changed_character_goes_unnoticed(idp: Any, data: Any) -> None:
    token = idp.token()
    at = data.draw(st.integers(0, len(token) - 1))
    other = data.draw(st.characters(codec="ascii").filter(lambda char: char != token[at]))
    changed = token[:at] + other + token[at + 1 :]
    assert not ours(idp, changed)


def token_of(idp: Any, header: Any, changes: Any) -> str:
    full = {"typ": "JWT", "alg": "RS256", "kid": "rsa1"} | header
    base = idp.claims()
    if "exp" in changes and "iat" not in changes:
        del base["iat"]
    claims = base | changes
    token: str = idp.signed(full, json.dumps(claims).encode(), "RS256")
    return token


@pytest.fixture(autouse=True)
def quiet(caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level("ERROR", "harmonium.audit")
