"""The peer: transformers' `generate` on the same checkpoint, dtype and threads."""

from __future__ import annotations

import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import torch
from transformers import AutoModelForCausalLM

from tools.benchmarks.workload import Job


class TransformersPeer:
    """A static batch: prompts padded on the left, decoded until the longest answer ends."""

    def __init__(self, checkpoint: Path, dtype: str) -> None:
        self._model: Any = AutoModelForCausalLM.from_pretrained(
            checkpoint, dtype=getattr(torch, dtype)
        )

    def run(self, jobs: Sequence[Job]) -> float:
        """Generate all jobs as one batch and return the seconds it took."""
        longest = max(len(job.prompt) for job in jobs)
        padded = [[0] * (longest - len(job.prompt)) + list(job.prompt) for job in jobs]
        mask = [[0] * (longest - len(job.prompt)) + [1] * len(job.prompt) for job in jobs]
        num_tokens = max(job.num_tokens for job in jobs)
        ids, attention_mask = torch.tensor(padded), torch.tensor(mask)
        started = time.perf_counter()
        with torch.inference_mode():
            output = self._model.generate(
                ids,
                attention_mask=attention_mask,
                do_sample=False,
                min_new_tokens=None,
                max_new_tokens=num_tokens,
                eos_token_id=None,
                pad_token_id=0,
            )
        elapsed = time.perf_counter() - started
        if output.shape[1] != longest + num_tokens:
            raise RuntimeError(f"transformers stopped early: {tuple(output.shape)}")
        return elapsed
