"""What transformers computes for token ids: `python -m parts.verify.reference`, JSON in and out.

It reads `Question` from stdin and writes `Reply` to stdout. It runs in a process of its own, so
that its memory is free before and after, and its library may be in another environment. It has the
engine's weights, and computes in float32 where they fit: a difference is then the engine's.
"""

from __future__ import annotations

import logging
import sys
from contextlib import redirect_stdout
from typing import Any, Final, Literal

import msgspec
import torch
import transformers

from engines.native.host.memory import available_bytes
from engines.native.mxfp4 import dequantise, quantise

DType = Literal["float32", "bfloat16"]

_BESIDE: Final = 1.15  # of the experts: all other weights, and what a step computes


class Question(msgspec.Struct, frozen=True):
    """Texts to score and prompts to continue, as token ids."""

    model_dir: str
    dtype: DType  # of the weights, as the engine has them
    prompts: tuple[tuple[int, ...], ...]  # of each text, which is scored after it
    texts: tuple[tuple[int, ...], ...]
    max_tokens: int  # of a greedy answer
    stop_token_ids: tuple[int, ...]
    is_rounded: bool = False  # whether the engine rounds 16-bit experts to MXFP4


class ReferenceAnswer(msgspec.Struct, frozen=True):
    """A greedy answer."""

    token_ids: tuple[int, ...]
    margins: tuple[float, ...]  # by which each token's logit exceeds the second best


class Reply(msgspec.Struct, frozen=True):
    """What transformers made of a question."""

    version: str
    device: str
    dtype: DType  # of the arithmetic
    logprobs: tuple[tuple[float, ...], ...]  # of each text's tokens, after its prompt
    answers: tuple[ReferenceAnswer, ...]


def reply(question: Question) -> Reply:
    """Compute everything that is asked; loads the checkpoint."""
    config: Any = transformers.AutoConfig.from_pretrained(question.model_dir)
    free = torch.cuda.mem_get_info()[0] if torch.cuda.is_available() else 0
    each = 3 * config.hidden_size * config.intermediate_size
    num_weights = config.num_hidden_layers * config.num_local_experts * each
    device, dtype = chosen_place(num_weights, question.dtype, free, available_bytes() or 0)
    is_packed = getattr(config, "quantization_config", None) is not None
    known = transformers.Mxfp4Config(dequantize=True) if is_packed else None  # its kernels are bf16
    model: Any = transformers.AutoModelForCausalLM.from_pretrained(
        question.model_dir, dtype=getattr(torch, question.dtype), quantization_config=known
    )
    if question.is_rounded:
        _round_experts(model)
    model = model.to(device, getattr(torch, dtype)).eval()
    pairs = zip(question.prompts, question.texts, strict=True)
    with torch.inference_mode():
        logprobs = tuple(_logprobs(model, device, *pair) for pair in pairs)
        answers = tuple(_greedy(model, device, each, question) for each in question.prompts)
    return Reply(transformers.__version__, device, dtype, logprobs, answers)


def chosen_place(num_weights: int, own: DType, free_gpu: int, free_host: int) -> tuple[str, DType]:
    """In float32 on the GPU or the host, whichever has the bytes, else in the weights' own."""
    for dtype in ("float32", own):
        needed = getattr(torch, dtype).itemsize * num_weights * _BESIDE
        for device, free in (("cuda", free_gpu), ("cpu", free_host)):
            if free > needed:
                return device, dtype
    return "cpu", own


def _round_experts(model: Any) -> None:
    """Round in place, expert by expert, as the engine does while loading."""
    for name, parameter in model.named_parameters():
        if name.endswith((".experts.gate_up_proj", ".experts.down_proj")):
            for expert in parameter.data:  # (inputs, outputs)
                expert.copy_(dequantise(*quantise(expert.t()), expert.dtype).t())


def _logprobs(
    model: Any, device: str, prompt: tuple[int, ...], text: tuple[int, ...]
) -> tuple[float, ...]:
    ids = torch.tensor([[*prompt, *text]], device=device)
    scores = torch.log_softmax(model(ids).logits[0, len(prompt) - 1 : -1].float(), -1)
    chosen = scores.gather(1, ids[0, len(prompt) :, None])
    return tuple(chosen[:, 0].tolist())


def _greedy(
    model: Any, device: str, prompt: tuple[int, ...], question: Question
) -> ReferenceAnswer:
    ids, margins, known = list(prompt), [], None
    while len(ids) - len(prompt) < question.max_tokens:
        given = torch.tensor([ids if known is None else ids[-1:]], device=device)
        output = model(given, past_key_values=known, use_cache=True)
        known = output.past_key_values
        best = torch.topk(output.logits[0, -1].float(), 2)
        ids.append(int(best.indices[0]))
        margins.append(float(best.values[0] - best.values[1]))
        if ids[-1] in question.stop_token_ids:
            break
    return ReferenceAnswer(tuple(ids[len(prompt) :]), tuple(margins))


def main() -> None:
    logging.basicConfig(stream=sys.stderr)
    question = msgspec.json.decode(sys.stdin.buffer.read(), type=Question)
    with redirect_stdout(sys.stderr):  # whatever a library prints
        found = reply(question)
    sys.stdout.buffer.write(msgspec.json.encode(found))


if __name__ == "__main__":
    main()
