"""Whether the sandbox works on this machine, before anything starts."""

from __future__ import annotations

from typing import Final

from parts.sandbox.settings import SandboxSettings
from profiles.errors import InvalidConstraint
from service.run.launching import LaunchPart
from service.settings.settings import Settings


class _Sandbox(LaunchPart):
    def check_server(self, settings: Settings) -> None:
        if not settings.of(SandboxSettings).has_python:
            return
        from parts.sandbox.jail import fault  # imported where it is used

        if (reason := fault()) is not None:
            raise InvalidConstraint(f"NIM_BUILTIN_TOOLS=python cannot work here: {reason}")


LAUNCH: Final = _Sandbox()
