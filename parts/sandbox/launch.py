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
        from parts.sandbox.runners import GUESTS

        for name, folder in own.tools_here.items():
            reason = own.fault(name)
            if reason is None and folder is None:
                reason = fault(GUESTS[name])
            elif folder is not None and not folder.is_dir():
                reason = f"{folder} is no folder; name the one where its host has its socket"
            if reason is not None:
                raise InvalidConstraint(f"NIM_BUILTIN_TOOLS={name} cannot work here: {reason}")


LAUNCH: Final = _Sandbox()
