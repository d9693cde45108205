"""Several ways to recognise a caller, asked in turn."""

from __future__ import annotations

from collections.abc import Sequence

from auth.base import Authenticator, Credentials, InvalidCredentials, Principal

_OURS = frozenset({"bearer", "x-api-key"})


class Chain:
    """The first authenticator that takes the credentials decides."""

    def __init__(self, authenticators: Sequence[Authenticator]) -> None:
        self._authenticators = tuple(authenticators)

    async def authenticate(self, credentials: Credentials) -> Principal | None:
        """Return who it is; a key or token that nobody takes is wrong, not absent."""
        for authenticator in self._authenticators:
            principal = await authenticator.authenticate(credentials)
            if principal is not None:
                return principal
        if credentials.scheme in _OURS:
            raise InvalidCredentials("neither a key nor a token that is known here")
        return None
