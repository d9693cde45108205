"""PEFT as the oracle: an adapter that it saved, merged by it and by us, gives the same logits."""

from __future__ import annotations

import asyncio
from pathlib import Path
from typing import Any

import pytest
import torch
from click.testing import CliRunner

from parts.lora.command import merge
from tests.close import assert_close
from tests.engines.native.small_model import small_config, write_small
from tests.parts.lora.test_merge import in_bf16, packed
from tests.parts.lora.test_native import PROMPT, answer, asking, running, scores, tokens

pytestmark = [pytest.mark.heavy, pytest.mark.filterwarnings("ignore")]  # transformers and PEFT

TARGETS = {
    "attention": {"target_modules": ["q_proj", "k_proj", "v_proj", "o_proj"]},
    "all": {
        "target_modules": ["q_proj", "v_proj", "lm_head"],
        "target_parameters": ["mlp.experts.gate_up_proj", "mlp.experts.down_proj"],
    },
}


def logits(model: Any) -> torch.Tensor:
    ids = torch.arange(40).remainder(17).unsqueeze(0)
    with torch.no_grad():
        found: torch.Tensor = model.float()(ids).logits
    return found


@pytest.mark.parametrize("form", [in_bf16, packed])
@pytest.mark.parametrize("targets", TARGETS)
def test_logits_are_those_of_peft(tmp_path: Path, targets: str, form: Any) -> None:
    from peft import LoraConfig, get_peft_model
    from transformers import AutoModelForCausalLM

    config = small_config(300) | {"num_hidden_layers": 2, "architectures": ["GptOssForCausalLM"]}
    base = write_small(tmp_path / "base", config, in_bf16)
    model = AutoModelForCausalLM.from_pretrained(base, dtype=torch.bfloat16)
    plain = logits(model)
    torch.manual_seed(0)
    model = AutoModelForCausalLM.from_pretrained(base, dtype=torch.bfloat16)
    asked = LoraConfig(r=4, lora_alpha=8, init_lora_weights=False, **TARGETS[targets])
    adapted = get_peft_model(model, asked)
    adapted.save_pretrained(tmp_path / "adapter")
    wanted = logits(adapted.merge_and_unload())
    if form is packed:
        base = write_small(tmp_path / "packed", config, packed)
    arguments = [str(base), str(tmp_path / "adapter"), str(tmp_path / "merged"), "--bf16"]
    assert CliRunner().invoke(merge, arguments, standalone_mode=False).return_value == 0
    found = logits(AutoModelForCausalLM.from_pretrained(tmp_path / "merged", dtype=torch.bfloat16))
    far = (wanted - plain).abs().mean()
    assert (found - wanted).abs().mean() < (0.5 if form is packed else 0.05) * far


async def test_the_native_engine_says_what_peft_says(tmp_path: Path) -> None:
    """Greedy tokens and their log-probabilities, four adapters and the model in one step."""
    from peft import LoraConfig, PeftModel, get_peft_model
    from transformers import AutoModelForCausalLM

    config = small_config(300) | {"num_hidden_layers": 2, "architectures": ["GptOssForCausalLM"]}
    base = write_small(tmp_path / "base", config)
    asked: dict[str, dict[str, Any]] = {
        "french": {"r": 4, "lora_alpha": 8, **TARGETS["attention"]},
        "law": {
            "r": 6, "lora_alpha": 9, "use_rslora": True, "target_modules": ["k_proj", "o_proj"],
            "rank_pattern": {"k_proj": 3}, "alpha_pattern": {"o_proj": 5},
        },
        "cooks": {
            "r": 3, "lora_alpha": 6, "target_modules": ["q_proj"],
            "target_parameters": TARGETS["all"]["target_parameters"],
        },
        "pans": {
            "r": 3, "lora_alpha": 6, "target_modules": [],
            "target_parameters": ["mlp.experts.down_proj"],
        },
    }  # fmt: skip
    torch.manual_seed(0)
    for name, each in asked.items():
        model = AutoModelForCausalLM.from_pretrained(base, dtype=torch.float32)
        get_peft_model(model, LoraConfig(init_lora_weights=False, **each)).save_pretrained(
            tmp_path / name
        )
    folders = [None, *(tmp_path / name for name in asked)]
    wanted = []
    for at in folders:
        model = AutoModelForCausalLM.from_pretrained(base, dtype=torch.float32)
        if at is not None:
            model = PeftModel.from_pretrained(model, str(at))
        wanted.append(continued(model, PROMPT, 12))
    async with running(base) as engine:
        found = await asyncio.gather(*(answer(engine, asking(at)) for at in folders))
    for events, (ids, logprobs) in zip(found, wanted, strict=True):
        assert tokens(events) == ids
        assert_close(scores(events), logprobs, atol=1e-4, rtol=0.0)
    assert len({tuple(ids) for ids, _ in wanted}) == len(folders)


def continued(model: Any, prompt: tuple[int, ...], num: int) -> tuple[list[int], torch.Tensor]:
    """The likeliest tokens one by one, and their log-probabilities."""
    ids, found = [*prompt], []
    for _ in range(num):
        with torch.no_grad():
            last = model(torch.tensor([ids])).logits[0, -1].float().log_softmax(-1)
        ids.append(int(last.argmax()))
        found.append(last.max())
    return ids[len(prompt) :], torch.stack(found)
