"""How much of the responses is kept."""

from __future__ import annotations

from pydantic import Field

from service.settings.group import Group


class ResponsesSettings(Group):
    """Responses"""

    responses_max_age_s: float = Field(
        30 * 24 * 3600.0,
        gt=0,
        description="Seconds for which a stored response is kept after its last use.",
    )
    responses_max_bytes: int = Field(
        1 << 30,
        ge=1 << 20,
        description="Maximum total size of stored responses. When full, the least recently "
        "used response of the tenant with the most data is deleted.",
    )

    open_responses: bool = Field(
        False,
        description="Events of reasoning have the names of the Open Responses specification, "
        "`response.reasoning.delta` and `.done`, also without the header `OpenResponses-Version`.",
    )


SETTINGS = ResponsesSettings
