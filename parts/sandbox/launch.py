"""Whether the sandboxes work on this machine, before anything starts."""

from __future__ import annotations

from typing import Final

from parts.sandbox.settings import SandboxSettings
from profiles.errors import InvalidConstraint
from service.run.launching import LaunchPart
from service.settings.settings import Settings


class _Sandbox(LaunchPart):
    def check_server(self, settings: Settings) -> None:
        own = settings.of(SandboxSettings)
        if not own.tools_here:
            return
        from parts.sandbox.jail import fault  # imported where they are used
        from parts.sandbox.runners import BROWSER, PYTHON

        for guest in (PYTHON, BROWSER):
            if guest.name not in own.tools_here:
                continue
            if (reason := own.fault(guest.name) or fault(guest)) is not None:
                raise InvalidConstraint(
                    f"NIM_BUILTIN_TOOLS={guest.name} cannot work here: {reason}"
                )


LAUNCH: Final = _Sandbox()
