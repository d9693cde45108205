"""What both engines are asked to generate: the same prompts, the same lengths."""

from __future__ import annotations

import random
from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class Job:
    """One request: random prompt ids and exactly `num_tokens` generated greedily."""

    prompt: tuple[int, ...]
    num_tokens: int


def single(*, prompt_len: int = 64, num_tokens: int = 128) -> list[Job]:
    """One stream."""
    return [Job(_prompt(random.Random(1), prompt_len), num_tokens)]


def mixed(num_jobs: int) -> list[Job]:
    """Requests of mixed lengths, as traffic is: prompts and answers of 16 to 128."""
    rng = random.Random(2)
    return [Job(_prompt(rng, rng.randint(16, 128)), rng.randint(16, 128)) for _ in range(num_jobs)]


def uniform(num_jobs: int, *, prompt_len: int = 128, num_tokens: int = 128) -> list[Job]:
    """Requests of one length: the best case of a static batch."""
    rng = random.Random(3)
    return [Job(_prompt(rng, prompt_len), num_tokens) for _ in range(num_jobs)]


def prompt(prompt_len: int) -> list[Job]:
    """One prompt and the first token after it."""
    return [Job(_prompt(random.Random(4), prompt_len), 1)]


def _prompt(rng: random.Random, length: int) -> tuple[int, ...]:
    return tuple(rng.randrange(1000, 190_000) for _ in range(length))
