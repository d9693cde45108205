"""PEFT as the oracle: an adapter that it saved, merged by it and by us, gives the same logits."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch
from click.testing import CliRunner

from parts.lora.command import merge
from tests.engines.native.small_model import small_config, write_small
from tests.parts.lora.test_merge import in_bf16, packed

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
