"""The model computes what transformers computes, however a prompt is cut and batched."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from torch import Tensor

from tests.close import assert_close

YARN = {
    "rope_type": "yarn",
    "rope_theta": 10000.0,
    "factor": 4.0,
    "original_max_position_embeddings": 512,
}


def assert_agrees(logits: Tensor, expected: Tensor) -> None:
    assert_close(logits, expected, atol=1e-4, rtol=0.0)


def assert_follows(driver: Any, checkpoint: Any, ids: list[int], chunk: int) -> None:
    """Cut ids into chunks; the logits after the last are the oracle's."""
    sequence = driver.sequence(ids)
    while sequence.num_computed_tokens < len(ids):
        num_left = len(ids) - sequence.num_computed_tokens
        logits = driver.step((sequence, min(chunk, num_left)))
    assert_agrees(logits[0], checkpoint.logits(ids)[-1])


@pytest.mark.parametrize("num_tokens", [1, 3, 4, 9, 50])
@pytest.mark.parametrize("chunk", [1, 7, 16, 512])
def test_a_prompt_cut_anywhere(
    make_checkpoint: Any, drive: Any, token_ids: Any, num_tokens: int, chunk: int
) -> None:
    checkpoint = make_checkpoint()
    driver = drive(checkpoint, checkpoint.load())
    assert_follows(driver, checkpoint, token_ids(num_tokens), chunk)


@pytest.mark.parametrize(
    "changes",
    [
        {"sliding_window": 128},
        {"num_local_experts": 16, "num_experts_per_tok": 2},
        {"num_key_value_heads": 4},
        {"num_key_value_heads": 1, "head_dim": 32},
        {"tie_word_embeddings": True},
        {"attention_bias": False},
        {"swiglu_limit": 0.5},
        {"rope_parameters": {**YARN, "truncate": True}},
        {"rope_parameters": {**YARN, "attention_factor": 1.5, "beta_fast": 8.0}},
        {"layer_types": ["full_attention"] * 3},
        {"layer_types": ["sliding_attention", "sliding_attention", "full_attention"]},
    ],
    ids=lambda changes: next(iter(changes)),
)
def test_every_shape(make_checkpoint: Any, drive: Any, token_ids: Any, changes: Any) -> None:
    checkpoint = make_checkpoint(**changes)
    driver = drive(checkpoint, checkpoint.load())
    assert_follows(driver, checkpoint, token_ids(300), chunk=90)


def test_prompt_longer_than_a_kernel_tile(make_checkpoint: Any, drive: Any, token_ids: Any) -> None:
    """Tiles of the attention kernel that the window hides entirely add nothing."""
    checkpoint = make_checkpoint(sliding_window=128)
    driver = drive(checkpoint, checkpoint.load(num_kv_blocks=1200, max_num_batched_tokens=1400))
    assert_follows(driver, checkpoint, token_ids(1400), chunk=1400)


def test_prefills_and_decodes_share_a_step(
    make_checkpoint: Any, drive: Any, token_ids: Any
) -> None:
    checkpoint = make_checkpoint()
    driver = drive(checkpoint, checkpoint.load(block_size=16))
    prompts = [token_ids(n) for n in (40, 700, 9, 75, 33)]
    decoding, long, short, prefilling, cut = [driver.sequence(p) for p in prompts]
    for sequence in (decoding, long, short):
        driver.step((sequence, len(sequence.token_ids) - 1))
    driver.step((prefilling, 25), (cut, 8))

    logits = driver.step((short, 1), (prefilling, 50), (long, 1), (cut, 5), (decoding, 1))

    expected = [checkpoint.logits(prompts[i])[-1] for i in (2, 3, 1, 0)]
    assert_agrees(logits, torch.stack(expected))


def test_decodes_with_much_to_attend_to_are_computed_in_parts(
    make_checkpoint: Any, drive: Any, token_ids: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("engines.native.backends.cpu.backend._GATHERED_BYTES", 1)
    checkpoint = make_checkpoint()
    driver = drive(checkpoint, checkpoint.load())
    prompts = [token_ids(length) for length in (40, 9, 12, 30)]
    sequences = [driver.sequence(prompt) for prompt in prompts]
    for sequence, prompt in zip(sequences, prompts, strict=True):
        driver.step((sequence, len(prompt) - 1))
    logits = driver.step(*((sequence, 1) for sequence in sequences))
    assert_agrees(logits, torch.stack([checkpoint.logits(prompt)[-1] for prompt in prompts]))


def test_a_step_without_an_end_gives_no_logits(
    make_checkpoint: Any, drive: Any, token_ids: Any
) -> None:
    checkpoint = make_checkpoint()
    driver = drive(checkpoint, checkpoint.load())
    assert driver.step((driver.sequence(token_ids(20)), 10)).shape == (0, 128)


def test_greedy_generation_goes_on_as_transformers_does(
    make_checkpoint: Any, drive: Any, token_ids: Any
) -> None:
    checkpoint = make_checkpoint()
    driver = drive(checkpoint, checkpoint.load())
    prompt = token_ids(21)
    sequence = driver.sequence(prompt)
    logits = driver.step((sequence, len(prompt)))
    for _ in range(30):
        sequence.token_ids.append(int(logits.argmax()))
        logits = driver.step((sequence, 1))
    expected = checkpoint.oracle.generate(
        torch.tensor([prompt]),
        attention_mask=torch.ones(1, len(prompt), dtype=torch.long),
        max_new_tokens=30,
        do_sample=False,
        pad_token_id=0,
    )
    assert sequence.token_ids == expected[0].tolist()


def test_equal_vocabulary_rows_are_computed_once_and_exactly(
    make_checkpoint: Any, drive: Any, token_ids: Any
) -> None:
    checkpoint = make_checkpoint()
    head = checkpoint.tensors["lm_head.weight"]
    head[40:100] = head[-1]
    checkpoint.write()
    checkpoint.oracle.lm_head.weight.data.copy_(head)
    driver = drive(checkpoint, checkpoint.load())
    sequence = driver.sequence(ids := token_ids(12))
    logits = driver.step((sequence, 12))[0]
    assert_agrees(logits, checkpoint.logits(ids)[-1])
    assert (logits[40:100] == logits[-1]).all()


def test_few_experts_sort_their_tokens_where_there_are_many(
    make_checkpoint: Any, drive: Any, token_ids: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    checkpoint = make_checkpoint()
    per_token = 8 * 2 * 32  # gates and ups of all experts
    monkeypatch.setattr("engines.native.backends.cpu.layers._CACHED_VALUES", 4 * per_token)
    driver = drive(checkpoint, checkpoint.load())
    assert_follows(driver, checkpoint, token_ids(17), chunk=5)
    assert_follows(driver, checkpoint, token_ids(17), chunk=4)


def test_bfloat16_stays_near_float32(make_checkpoint: Any, drive: Any, token_ids: Any) -> None:
    checkpoint = make_checkpoint()
    driver = drive(checkpoint, checkpoint.load(dtype="bfloat16"))
    sequence = driver.sequence(ids := token_ids(60))
    driver.step((sequence, 59))
    logits = driver.step((sequence, 1))[0]
    expected = checkpoint.logits(ids)[-1]
    assert logits.dtype == torch.float32
    assert torch.corrcoef(torch.stack((logits, expected)))[0, 1] > 0.995
