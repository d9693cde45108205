"""What questions cost beside the text that they are about."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from engines.native.config import NativeConfig
from engines.native.engine import NativeEngine
from service.harmony.vocabulary import encode_text
from tests.engines.native.small_model import small_config, write_small

pytestmark = pytest.mark.heavy  # four thousand tokens


def make_sure(tensors: dict[str, Any]) -> None:
    """Yes and no are the likeliest tokens everywhere, as of a model that answers."""
    tensors["model.embed_tokens.weight"][:, 0] = 100.0  # outweighs what the layers add
    tensors["lm_head.weight"].zero_()
    for answer in ("yes", "no"):
        tensors["lm_head.weight"][encode_text(answer)[0], 0] = 1.0


async def test_fifty_questions_cost_half_of_a_long_input(
    tmp_path: Path, make_runtime: Any, make_client: Any
) -> None:
    config = small_config(201_088) | {"num_hidden_layers": 2, "max_position_embeddings": 8192}
    engine = NativeEngine(NativeConfig(write_small(tmp_path / "small", config, make_sure)))
    client = await make_client(make_runtime(engine=engine))
    text = " ".join(f"The ticket {number} waits for an answer." for number in range(445))
    questions = [
        {"type": "predicate", "instructions": f"The text names ticket {number} first."}
        for number in range(50)
    ]
    body = {"model": "gpt-oss-20b", "input": text, "questions": questions}
    answer = await client.post("/v1/decisions", json=body)
    assert answer.status_code == 200, answer.text
    stats, num_input = await engine.stats(), len(encode_text(text))
    assert num_input > 3900
    assert stats.step_tokens < 1.5 * num_input
