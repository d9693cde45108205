"""Whatever comes as a token, its header is read or refused."""

from __future__ import annotations

import base64
import json

from hypothesis import given
from hypothesis import strategies as st

from auth.base import Credentials, InvalidCredentials
from parts.jwt.verify import TokenHeader, read_header
from tests.examples import any_text
from tests.fuzz.test_fuzz import FUZZ, anything


def encoded(value: object) -> str:
    text = value if isinstance(value, bytes) else json.dumps(value).encode()
    return base64.urlsafe_b64encode(text).rstrip(b"=").decode()


headers = st.dictionaries(
    st.sampled_from(("alg", "kid", "typ", "crit", "b64", "zip", "jku", "x5u", "jwk")), anything
)
likely = st.fixed_dictionaries(
    {
        "alg": st.sampled_from(("RS256", "none", "HS256", 1, None)),
        "typ": st.sampled_from(("JWT", "x")),
    },
    optional={"kid": st.one_of(any_text(), st.just("../../etc/passwd"), st.integers())},
)
tokens = st.one_of(
    any_text(),
    st.builds(
        lambda head, rest: ".".join([encoded(head), *rest]),
        st.one_of(headers, likely, anything, st.binary()),
        st.lists(st.one_of(st.just("e30"), any_text(), st.binary().map(encoded)), max_size=5),
    ),
)


@FUZZ
@given(tokens)
def test_a_header_is_read_or_refused(token: str) -> None:
    assert Credentials("bearer", token).is_token in (True, False)
    try:
        header = read_header(token)
    except InvalidCredentials:
        return
    assert isinstance(header, TokenHeader)
    assert isinstance(header.alg, str)
    assert header.kid is None or 0 < len(header.kid) <= 256
    assert token.count(".") == 2
