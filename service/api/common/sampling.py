"""How tokens are chosen: the fields that the routes for raw prompts and conversations share."""

from __future__ import annotations

from typing import Annotated

from pydantic import Field

from service.api.common.schema import RequestModel

NVEXT = (
    "NIM's extensions are fields of their own here: `structured_outputs` for guided_json and the "
    "like, `thinking_token_budget` for max_thinking_tokens, `top_k`, `min_p`, "
    "`repetition_penalty`, `ignore_eos`, `min_tokens`"
)
Penalty = Annotated[float, Field(ge=-2, le=2)]
Bias = Annotated[float, Field(ge=-100, le=100)]


class SamplingFields(RequestModel):
    """OpenAI's, and the extensions of the open-source servers."""

    temperature: float | None = Field(None, ge=0, le=2)
    top_p: float | None = Field(None, gt=0, le=1)
    top_k: int | None = Field(None, ge=-1, le=1 << 31, description="Extension; 0 or -1: all.")
    min_p: float | None = Field(None, ge=0, le=1, description="Extension.")
    presence_penalty: Penalty | None = None
    frequency_penalty: Penalty | None = None
    repetition_penalty: float | None = Field(None, gt=0, le=10, description="Extension.")
    logit_bias: dict[str, Bias] | None = None
    min_tokens: int | None = Field(
        None, ge=0, lt=1 << 31, description="Extension: the answer does not end before."
    )
    ignore_eos: bool | None = Field(
        None, description="Extension: only the limit ends the answer; for benchmarks."
    )
    seed: int | None = Field(None, ge=-(1 << 63), lt=1 << 63)
    priority: int | None = Field(
        None, ge=-(1 << 31), lt=1 << 31, description="Extension; lower goes first; 0 when left out."
    )
