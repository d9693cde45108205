"""Adapters on the CUDA backend: each row's answer is the merged model's, whatever runs beside."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from statistics import median
from typing import Any, Final

import numpy as np
import pytest
import torch

from engines.base import Adapter, EngineRequest, SamplingParams, TokenEvent
from tests.engines.native.cuda.kernels.kernel_fixtures import (
    DEVICE,
    IS_GPU,
    model_config,
)
from tests.engines.speculation import NGRAM
from tools.benchmarks.random_model import random_weights

from engines.native.backends.base import Addend  # isort: skip
from engines.native.backends.cuda.kernels import adapters as kernels  # isort: skip
from engines.native.backends.cuda.kernels.launch import KernelLaunch, instead  # isort: skip
from engines.native.backends.cuda.memory.adapter_room import AdapterRoom  # isort: skip
from engines.native.backends.cuda.weights.model import ModelWeights  # isort: skip
from engines.native.config import ModelConfig  # isort: skip
from engines.native.loop.sequence import Sequence  # isort: skip
from tests.engines.native.cuda.engine_case import EngineCase, finish  # isort: skip

LONGEST: Final = 1024 if IS_GPU else 64
NUM_TOKENS: Final = 24 if IS_GPU else 2
RANKS: Final = {"french": 4, "law": 17}
LENGTHS: Final = [300, 7, 40] if IS_GPU else [4, 3, 9]
# Of log-probabilities: the most by which bf16 moves half of the model's own, and how many times as
# much it may move half of an adapter's. In float64 against bf16 where a pass rounds, on a CPU with
# gpt-oss's shape, the model's moved by 0.006 and 0.011, depending on the prompt, and two adapters'
# by 0.022 and 0.033; the adapters change them by 0.67.
NEAR: Final = 0.05
TIMES: Final = 8
LEAST: Final = 0.001  # of a few tokens of the small shape half may be nearer by chance

Asked = list[tuple[str | None, list[int]]]
"""Adapters and prompts."""
Told = list[dict[int, float]]
"""Of each place the log-probabilities of some tokens."""


SIZE: Final = 0.5 if IS_GPU else 1.5  # of what an adapter adds, for inputs of 1


def changes_of(model: ModelConfig, rank: int) -> dict[str, Addend]:
    """Of all projections but the last layer's keys, exact in bf16; on gpt-oss's shape half as large
    as the model's own. Ten times the model's would leave attention one token, which rounding
    chooses."""
    generator = np.random.default_rng(rank)

    def addend(num_out: int, num_in: int) -> Addend:
        up, down = (generator.standard_normal(s) for s in ((num_out, rank), (rank, num_in)))
        return Addend(*(_rounded(each) for each in (up * SIZE / rank**0.5, down / num_in**0.5)))

    sides = {
        "q_proj": (model.q_size, model.hidden_size), "k_proj": (model.kv_size, model.hidden_size),
        "v_proj": (model.kv_size, model.hidden_size), "o_proj": (model.hidden_size, model.q_size),
    }  # fmt: skip
    found = {
        f"model.layers.{layer}.self_attn.{name}.weight": addend(*each)
        for layer in range(model.num_hidden_layers)
        for name, each in sides.items()
    }
    del found[f"model.layers.{model.num_hidden_layers - 1}.self_attn.k_proj.weight"]
    return found


def _rounded(values: np.ndarray) -> np.ndarray:
    return torch.from_numpy(values).bfloat16().float().numpy()


def merged(
    model: ModelConfig, weights: ModelWeights, changes: Mapping[str, Addend]
) -> ModelWeights:
    """The weights with the changes in them, in float64."""

    def change(layer: int, name: str, num_out: int, num_in: int) -> torch.Tensor:
        found = changes.get(f"model.layers.{layer}.self_attn.{name}.weight")
        if found is None:
            return torch.zeros((num_out, num_in), dtype=torch.float64, device=DEVICE)
        up, down = (torch.from_numpy(each).to(DEVICE).double() for each in found)
        return up @ down

    layers = []
    for index, layer in enumerate(weights.layers):
        sizes = (model.q_size, model.kv_size, model.kv_size)
        pairs = zip(("q_proj", "k_proj", "v_proj"), sizes, strict=True)
        qkv = torch.cat([change(index, name, num, model.hidden_size) for name, num in pairs])
        out = change(index, "o_proj", model.hidden_size, model.q_size)
        layers.append(replace(layer, qkv=layer.qkv.double() + qkv, out=layer.out.double() + out))
    return replace(weights, layers=layers)


class Case:
    """A model with two adapters, and each merged."""

    def __init__(self, **options: object) -> None:
        self.model = model = model_config()
        weights = random_weights(model, LONGEST, DEVICE)
        self.engine = EngineCase(
            model, weights, 400 if IS_GPU else 40, LONGEST, max_num_seqs=4 if IS_GPU else 2,
            chunk=256 if IS_GPU else 8, adapters=AdapterRoom(3, 32), **options,  # type: ignore[arg-type]
        )  # fmt: skip
        self.oracles: dict[str | None, EngineCase] = {None: self.engine}
        table = self.engine.backend.capacity.adapters
        assert table is not None
        for name, rank in RANKS.items():
            changes = changes_of(model, rank)
            table.put("old", table.prepared(changes_of(model, 31)))  # what the place held before
            table.remove("old")
            table.put(name, table.prepared(changes))
            oracle = self.oracles[name] = object.__new__(EngineCase)
            oracle.__dict__.update(self.engine.__dict__, weights=merged(model, weights, changes))

    def ask(self, asked: Asked, num: int = NUM_TOKENS) -> list[tuple[list[int], Told]]:
        """All at once: of each its answer, and the log-probabilities of each place."""
        core, params = self.engine.core(), SamplingParams(num, temperature=0.0, logprobs=2)
        told: dict[Sequence, Told] = {}
        for i, (name, prompt) in enumerate(asked):
            adapter = None if name is None else Adapter(name, "", name)
            salt = None if name is None else f"\1{name}\0"
            request = EngineRequest(str(i), tuple(prompt), params, adapter=adapter, cache_salt=salt)
            told[core.scheduler.add(request)] = []
        for sequence, event in finish(core):
            assert isinstance(event, TokenEvent), event
            told[sequence] += [
                {**dict(each.top), each.token_id: each.logprob} for each in event.logprobs or ()
            ]
        return [(each.token_ids[each.num_prompt_tokens :], of) for each, of in told.items()]

    def check(self, asked: Asked, answers: list[tuple[list[int], Told]]) -> None:
        """The log-probabilities are those of the merged models: an adapter's are as near as those
        of the requests without one, and nearer to them than to the model's."""
        errors: list[tuple[str | None, float, float]] = []
        for (name, prompt), (answer, told) in zip(asked, answers, strict=True):
            assert len(answer) == len(told) > 1
            rows, plain = (
                self.oracles[each].log_probabilities(prompt + answer[:-1])[-len(answer) :]
                for each in (name, None)
            )
            every = [(i, token, p) for i, at in enumerate(told) for token, p in at.items()]
            error = median(abs(float(rows[i, token]) - p) for i, token, p in every)
            away = median(abs(float(rows[i, token] - plain[i, token])) for i, token, _ in every)
            errors.append((name, error, away))
        usual = max(error for name, error, _ in errors if name is None)
        assert usual < NEAR, errors
        usual = max(usual, LEAST)
        for name, error, away in errors:
            assert name is None or (error < TIMES * usual and 10 * error < away), errors


@pytest.fixture(scope="module")
def case() -> Case:
    return Case()


def test_each_answer_is_the_merged_models(case: Case) -> None:
    """The model and an adapter in one step; without an adapter nothing of theirs is launched."""
    launched: list[Any] = []

    def note(launch: KernelLaunch) -> None:
        launched.append(launch.kernel)
        launch.start()

    prompts = case.engine.prompts(1, LENGTHS[:2])
    asked: Asked = [(None, prompts[0]), ("law", prompts[1])]
    with instead(note):
        answers = case.ask(asked)
    case.check(asked, answers)
    of_adapters = {kernels.group_kernel, kernels.shrink_kernel, kernels.expand_kernel}
    assert IS_GPU or of_adapters <= {*launched}  # graphs are replayed there
    launched.clear()
    with instead(note):
        case.check(asked[:1], case.ask(asked[:1]))
    assert not of_adapters & {*launched}


@pytest.mark.slow
def test_one_row_and_several_adapters_and_prompts_in_chunks(case: Case) -> None:
    prompts = case.engine.prompts(4, LENGTHS)
    asked: Asked = [*zip((None, "french", "law", "french"), [prompts[1], *prompts], strict=True)]
    answers = case.ask(asked)
    case.check(asked, answers)
    case.check(asked[:2], [answers[0], *case.ask(asked[1:2])])


@pytest.mark.slow
def test_rows_of_the_model_keep_their_bits(case: Case) -> None:
    prompts = case.engine.prompts(2, LENGTHS)
    beside: Asked = [(None, prompts[0]), ("french", prompts[1])]
    plain: Asked = [(None, prompt) for prompt in prompts[:2]]
    assert case.ask(beside)[0] == case.ask(plain)[0]


@pytest.mark.slow
@pytest.mark.parametrize(
    "options",
    [
        {"num_stages": 2},
        {"batch_invariant": True},
        {"speculation": NGRAM, "are_guesses_free": True},
    ],
    ids=["stages", "equal bits", "drafts"],
)
def test_so_it_is_in_stages_with_equal_bits_and_with_drafts(options: dict[str, object]) -> None:
    case = Case(**options)
    prompts = [[3] * 9, *case.engine.prompts(1, LENGTHS[1:])]
    asked: Asked = [*zip(("law", "french", None), prompts, strict=True)]
    case.check(asked, case.ask(asked, NUM_TOKENS + 2))
