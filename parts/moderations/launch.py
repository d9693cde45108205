"""Whether the policy can be used, asked before anything is loaded."""

from __future__ import annotations

from typing import Final

from engines.parts import folders
from parts.moderations.settings import ModerationsSettings
from profiles.errors import InvalidConstraint
from service.run.launching import LaunchPart
from service.settings.settings import Settings


class _Moderations(LaunchPart):
    def check_server(self, settings: Settings) -> None:
        """Raise InvalidConstraint if there is a policy, and it cannot be used."""
        path = settings.of(ModerationsSettings).moderation_policy_path
        if path is None:
            return
        from parts.moderations.policy import PolicyError, read_policy

        if "decisions" not in folders():
            raise InvalidConstraint(
                "NIM_MODERATION_POLICY_PATH: moderations need the part decisions, which this "
                "installation does not have; install it, or unset the policy."
            )
        try:
            read_policy(path)
        except PolicyError as error:
            raise InvalidConstraint(f"NIM_MODERATION_POLICY_PATH: {error}") from error


LAUNCH: Final = _Moderations()
