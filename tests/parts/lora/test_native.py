"""Adapters in the native engine: each answer is that of the merged model, whatever runs beside."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable, Iterator
from contextlib import aclosing, asynccontextmanager
from dataclasses import asdict, replace
from functools import partial
from pathlib import Path
from typing import Any, Final

import numpy as np
import pytest
import torch
from safetensors.numpy import load_file, save_file

from engines.base import Adapter, Engine, EngineRequest, SamplingParams, TokenEvent
from engines.errors import EngineStartError, InvalidRequest, RequestFailed
from engines.native.about import ABOUT
from engines.native.backends.base import SlotStart
from engines.native.backends.cpu.backend import TorchModel
from engines.native.config import ModelConfig, NativeConfig
from engines.native.host.slots import Slot, Span
from engines.native.weights import tensor_specs
from engines.parts import folders
from engines.prompt_logprobs import packed_in, unpacked
from engines.spec import EngineSpec
from parts.lora.files import served_adapter
from parts.lora.native.kept import AdapterLimits
from parts.lora.native.loading import AdapterLoader
from tests.close import assert_close
from tests.engines.native.small_model import small_config, write_small
from tests.parts.lora.conftest import write_adapted

VOCABULARY: Final = 300
PROMPT: Final = tuple((17 * i * i + 5) % VOCABULARY for i in range(40))
LIMITS: Final = AdapterLimits(max_used=8, max_kept=16, max_rank=32)
CONFIG: Final = small_config(VOCABULARY) | {"num_hidden_layers": 2, "intermediate_size": 64}
EXPERTS: Final = 4

Folders = dict[str, Path]


@pytest.fixture(scope="module", autouse=True)
def _one_thread() -> Iterator[None]:
    before = torch.get_num_threads()
    torch.set_num_threads(1)
    yield
    torch.set_num_threads(before)


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("native")


@pytest.fixture(scope="module")
def base(folder: Path) -> Path:
    return write_small(folder / "base", CONFIG)


@pytest.fixture(scope="module")
def adapters(folder: Path) -> Folders:
    """`french` changes all four projections of both layers, `law` two of one, at another rank;
    `cooks` changes experts too."""
    every = [(i, each) for i in range(2) for each in ("q_proj", "k_proj", "v_proj", "o_proj")]
    return {
        "french": write_adapted(folder / "french", every, rank=4, seed=1),
        "law": write_adapted(
            folder / "law", [(1, "q_proj"), (1, "v_proj")], rank=9, seed=2, use_rslora=True
        ),
        "cooks": write_experts(folder / "cooks"),
    }


def write_experts(folder: Path, rank: int = 3) -> Path:
    """As PEFT saves `target_parameters`: both matrices of one layer's, the second of another's."""
    write_adapted(folder, [(0, "q_proj")], rank=rank, seed=3)
    tensors, numbers = load_file(folder / "adapter_model.safetensors"), np.random.default_rng(4)
    sides = {
        "layers.0.mlp.experts.base_layer": (32, 128), "layers.0.mlp.experts": (64, 32),
        "layers.1.mlp.experts": (64, 32),
    }  # fmt: skip
    for module, (num_in, num_out) in sides.items():
        for name, shape in {"A": (EXPERTS * rank, num_in), "B": (num_out, rank * EXPERTS)}.items():
            value = (numbers.standard_normal(shape) * 0.2).astype(np.float32)
            tensors[f"base_model.model.model.{module}.lora_{name}.weight"] = value
    save_file(tensors, folder / "adapter_model.safetensors")
    return folder


@pytest.fixture(scope="module")
def merged(folder: Path, base: Path, adapters: Folders) -> Folders:
    """The same as whole models, by PEFT's formula."""
    return {
        name: write_small(folder / f"merged-{name}", CONFIG, partial(merge, adapter=at))
        for name, at in adapters.items()
    }


def merge(tensors: dict[str, torch.Tensor], adapter: Path) -> None:
    found = load_file(adapter / "adapter_model.safetensors")
    # alpha / rank, alpha / sqrt(rank)
    scale = {"french": 16 / 4, "law": 16 / 3, "cooks": 16 / 3}[adapter.name]
    for stored in found:
        module, is_a, _ = stored.partition(".lora_A.weight")
        if not is_a:
            continue
        name, up, down = module.removeprefix("base_model.model."), f"{module}.lora_B.weight", stored
        if "experts" not in module:
            tensors[f"{name}.weight"] += torch.from_numpy(scale * found[up] @ found[down])
            continue
        each = "gate_up_proj" if name.endswith("base_layer") else "down_proj"
        a, b = found[down].reshape(EXPERTS, 3, -1), found[up].reshape(-1, 3, EXPERTS)
        change = scale * np.einsum("ore,eri->eio", b, a)
        tensors[f"{name.removesuffix('.base_layer')}.{each}"] += torch.from_numpy(change)


@asynccontextmanager
async def running(
    base: Path, limits: AdapterLimits | None = LIMITS, ranks: tuple[int, int] = (1, 1),
    **options: Any,
) -> AsyncIterator[Engine]:  # fmt: skip
    """`ranks`: that share each layer, and each expert or the experts."""
    options = {"block_size": 4, "num_kv_blocks": 400, "max_num_seqs": 8, **options}
    parts = {} if limits is None else {"lora": asdict(limits)}
    spec = EngineSpec("native", options, model_dir=str(base), parts=parts)
    engine = ABOUT.create(replace(spec, tensor_parallel=ranks[0], expert_parallel=ranks[1]))
    await engine.start()
    try:
        yield engine
        await engine.drain()
        await engine.check_health()
    finally:
        await engine.stop()


def asking(
    folder: Path | None = None, prompt: tuple[int, ...] = PROMPT, num: int = 12, **given: Any
) -> EngineRequest:
    """A request as the service makes it."""
    adapter = None if folder is None else served_adapter(folder.name, folder, 512)
    salt = None if adapter is None else f"\1{adapter.key}\0"
    sampling = SamplingParams(num, temperature=0.0, logprobs=5, **given)
    return EngineRequest("r", prompt, sampling, adapter=adapter, cache_salt=salt)


async def answer(engine: Engine, request: EngineRequest) -> list[TokenEvent]:
    return [event async for event in engine.generate(request)]


def tokens(events: list[TokenEvent]) -> list[int]:
    return [token for event in events for token in event.token_ids]


def scores(events: list[TokenEvent]) -> torch.Tensor:
    return torch.tensor([each.logprob for event in events for each in event.logprobs or ()])


@pytest.mark.parametrize("ranks", [(1, 1), (2, 1), (2, 2)], ids=str)
async def test_an_answer_is_that_of_the_merged_model(
    base: Path, adapters: Folders, merged: Folders, ranks: tuple[int, int]
) -> None:
    async with running(base, ranks=ranks) as engine:
        assert "adapter" not in engine.info.capabilities.lacks
        plain = await answer(engine, asking())
        found = {name: await answer(engine, asking(at)) for name, at in adapters.items()}
    for name, at in merged.items():
        async with running(at, None) as engine:
            assert "adapter" in engine.info.capabilities.lacks
            wanted = await answer(engine, asking())
        assert tokens(found[name]) == tokens(wanted) != tokens(plain)
        assert_close(scores(found[name]), scores(wanted), atol=1e-4, rtol=0.0)
    async with running(base, None) as engine:
        assert tokens(await answer(engine, asking())) == tokens(plain)


@pytest.mark.parametrize(
    "options",
    [
        {},
        {"max_num_batched_tokens": 7},
        {"num_kv_blocks": 60, "max_num_batched_tokens": 16, "max_model_len": 100},
        {"overlap_steps": False},
        {"speculation": "ngram"},
    ],
    ids=str,
)
async def test_beside_others_an_answer_is_the_same(
    base: Path, adapters: Folders, options: dict[str, Any]
) -> None:
    """Base and two adapters in one step; cut prompts, preemptions and drafts change nothing."""
    if options.get("speculation") == "ngram" and "drafts" not in folders():
        pytest.skip("the part with drafts was removed")
    prompts = [PROMPT, PROMPT[:9], (7,) * 20]
    asked = [asking(at, prompt) for at in (None, *adapters.values()) for prompt in prompts]
    async with running(base, enable_prefix_caching=False) as engine:
        alone = [tokens(await answer(engine, each)) for each in asked]
    assert len(set(map(tuple, alone))) > len(prompts)
    async with running(base, **options) as engine:
        for _ in range(2):  # the second time from the prefix cache
            together = await asyncio.gather(*(answer(engine, each) for each in asked))
            assert [*map(tokens, together)] == alone


async def test_no_prefix_is_shared(base: Path, adapters: Folders) -> None:
    async with running(base) as engine:
        asked = [asking(), *map(asking, adapters.values())]
        first = [(await answer(engine, each))[0].num_cached_tokens for each in asked]
        again = [(await answer(engine, each))[0].num_cached_tokens for each in asked]
    assert first == [0] * 4
    assert again == [36] * 4


async def test_more_adapters_than_have_room_take_turns(
    base: Path, adapters: Folders, merged: Folders
) -> None:
    limits = AdapterLimits(max_used=1, max_kept=1, max_rank=32)
    asked = [asking(at) for at in adapters.values()] * 3
    async with running(base) as engine:
        wanted = [tokens(await answer(engine, each)) for each in asked]
    async with running(base, limits) as engine:
        plain = asyncio.create_task(answer(engine, asking()))
        found = await asyncio.gather(*(answer(engine, each) for each in asked))
        assert [*map(tokens, found)] == wanted
        await plain


async def test_one_that_waits_for_room_can_leave(base: Path, adapters: Folders) -> None:
    limits = AdapterLimits(max_used=1, max_kept=1, max_rank=32)
    french, law = (asking(adapters[name], num=200) for name in ("french", "law"))
    async with running(base, limits) as engine:
        async with aclosing(engine.generate(french)) as events:
            await anext(events)  # it has the only place
            waiting = asyncio.create_task(answer(engine, law))
            while not (await engine.stats()).num_waiting:
                await asyncio.sleep(0)
            waiting.cancel()
            assert (await engine.stats()).num_waiting == 1
            await asyncio.wait([waiting])
            assert (await engine.stats()).num_waiting == 0
        assert len(tokens(await answer(engine, law))) == 200


def reshaped(path: Path) -> None:
    change_tensor(path, "q_proj.lora_A", np.zeros((4, 31), np.float32))


def infinite(path: Path) -> None:
    change_tensor(path, "q_proj.lora_B", np.full((32, 4), np.nan, np.float32))


def halved(path: Path) -> None:
    tensors = load_file(path / "adapter_model.safetensors")
    save_file(
        {name: each for name, each in tensors.items() if "lora_A" in name},
        path / "adapter_model.safetensors",
    )


def router(path: Path) -> None:
    write_adapted(path, [(0, "q_proj"), (0, "mlp.router")], rank=4, seed=1)


def too_high(path: Path) -> None:
    write_adapted(path, [(0, "q_proj")], rank=33, seed=1)


def experts_too_high(path: Path) -> None:
    write_experts(path, 33)
    tensors = load_file(path / "adapter_model.safetensors")
    experts = {name: each for name, each in tensors.items() if "experts" in name}
    save_file(experts, path / "adapter_model.safetensors")


def deeper(path: Path) -> None:
    write_adapted(path, [(2, "q_proj")], rank=4, seed=1)


def without_alpha(path: Path) -> None:
    write_adapted(path, [(0, "q_proj")], rank=4, seed=1, lora_alpha=None)


def change_tensor(path: Path, part: str, value: Any) -> None:
    tensors = load_file(path / "adapter_model.safetensors")
    name = next(each for each in tensors if part in each)
    save_file(tensors | {name: value}, path / "adapter_model.safetensors")


@pytest.mark.parametrize(
    ("break_it", "said"),
    [
        (reshaped, r"model.layers.0.self_attn.q_proj has shapes \[4, 31\] and \[32, 4\]"),
        (infinite, "model.layers.0.self_attn.q_proj.weight: its change is not finite"),
        (halved, "q_proj has only one of lora_A and lora_B"),
        (router, "model.layers.0.mlp.router is no projection of attention.*harmonium merge"),
        (experts_too_high, "model.layers.0.mlp.experts.gate_up_proj has rank 33; .*NIM_MAX_LORA_R"),
        (too_high, "q_proj.lora_A.weight has rank 33; .*NIM_MAX_LORA_RANK"),
        (without_alpha, "lora_alpha or alpha_pattern is no number for model.layers.0.self_attn.q"),
        (deeper, "model.layers.2.self_attn.q_proj has shapes .*: no tensor of this checkpoint"),
    ],
)
async def test_an_adapter_that_cannot_be_loaded_costs_its_request_alone(
    base: Path, tmp_path: Path, break_it: Callable[[Path], None], said: str
) -> None:
    broken = write_adapted(tmp_path / "broken", [(0, "q_proj")], rank=4, seed=1)
    whole = asking(broken)
    break_it(broken)
    async with running(base) as engine:
        with pytest.raises(InvalidRequest, match=f"the adapter 'broken' cannot be used: .*{said}"):
            await answer(engine, asking(broken))
        with pytest.raises(InvalidRequest, match="the adapter 'broken' cannot be used"):
            await answer(engine, whole)
        write_adapted(broken, [(0, "q_proj")], rank=4, seed=1)
        found = await asyncio.gather(*(answer(engine, each) for each in (asking(), asking(broken))))
        assert tokens(found[0]) != tokens(found[1])


async def test_content_that_changed_is_not_taken_for_the_old(base: Path, tmp_path: Path) -> None:
    """Else K/V of both would lie under one key."""
    at = write_adapted(tmp_path / "a", [(0, "q_proj")], rank=4, seed=1)
    old = asking(at)
    write_adapted(at, [(0, "q_proj")], rank=4, seed=2)
    async with running(base) as engine:
        with pytest.raises(InvalidRequest, match=r"has changed since .*load_inplace"):
            await answer(engine, old)


async def test_an_adapter_that_overflows_leaves_the_engine_alive(
    base: Path, tmp_path: Path
) -> None:
    at = write_adapted(tmp_path / "a", [(0, "v_proj"), (0, "o_proj")], rank=4, seed=1, by=1e18)
    async with running(base) as engine:
        for _ in range(5):  # three failed steps in a row end an engine
            with pytest.raises(RequestFailed, match="not finite"):
                await answer(engine, asking(at))
        assert len(tokens(await answer(engine, asking()))) == 12


@pytest.mark.parametrize("name", ["french", "cooks"])
def test_base_rows_are_the_same_to_the_bit(base: Path, adapters: Folders, name: str) -> None:
    """An adapter's row in the step changes no bit of the others."""
    model = ModelConfig.from_dir(base)
    network = TorchModel(NativeConfig(base, block_size=4, num_kv_blocks=50), model)
    table = network.capacity.adapters
    assert table is not None
    loader = AdapterLoader(tensor_specs(model), 32, table)
    table.put(name, loader.load(served_adapter(name, adapters[name], 32)))

    def logits(*keys: str | None) -> torch.Tensor:
        blocks = [(1, 2), (3, 4), (5, 6)]
        starts = [
            SlotStart(i, PROMPT[i : i + 5], 5, own, own, SamplingParams(1), 0, key)
            for i, (key, own) in enumerate(zip(keys, blocks, strict=True))
        ]
        spans = [Span(Slot(start), 0, 5, True) for start in starts]
        return network.forward(spans).spread()

    plain, mixed = logits(None, None, None), logits(None, name, None)
    assert torch.equal(mixed[[0, 2]], plain[[0, 2]])
    assert not torch.equal(mixed[1], plain[1])


async def test_ranks_take_turns_of_adapters_too(
    base: Path, adapters: Folders, merged: Folders
) -> None:
    limits = AdapterLimits(max_used=1, max_kept=1, max_rank=32)
    asked = [asking(at) for at in adapters.values()] * 2
    async with running(base) as engine:
        wanted = [tokens(await answer(engine, each)) for each in asked]
    async with running(base, limits, ranks=(2, 1)) as engine:
        found = await asyncio.gather(*(answer(engine, each) for each in asked))
    assert [*map(tokens, found)] == wanted


def test_ranks_on_gpus_compute_no_adapters(base: Path) -> None:
    plain = EngineSpec("native", model_dir=str(base), parts={"lora": asdict(LIMITS)}, num_devices=2)
    with pytest.raises(EngineStartError, match=r"without tensor parallelism .*`harmonium merge`"):
        ABOUT.create(replace(plain, tensor_parallel=2))


async def test_one_that_lost_its_place_is_not_read_again(
    base: Path, adapters: Folders, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A device has places for those in use; the host keeps more."""
    read = []

    def note(self: AdapterLoader, adapter: Adapter) -> Any:
        read.append(adapter.name)
        return load(self, adapter)

    load = AdapterLoader.load
    monkeypatch.setattr(AdapterLoader, "load", note)
    for max_kept, wanted in ((2, ["french", "law"]), (1, ["french", "law", "french"])):
        read.clear()
        async with running(
            base, AdapterLimits(max_used=1, max_kept=max_kept, max_rank=32)
        ) as engine:
            found = [
                tokens(await answer(engine, asking(adapters[name])))
                for name in ("french", "law", "french")
            ]
        assert found[0] == found[2] != found[1]
        assert read == wanted


async def test_a_start_without_memory_for_them_is_refused(
    base: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("parts.lora.engine.available_bytes", lambda: 1 << 20)
    said = r"16 LoRA adapters of rank 32 take \d+ bytes.*lower NIM_MAX_CPU_LORAS or"
    with pytest.raises(EngineStartError, match=said):
        async with running(base):
            pass


async def test_scores_of_a_prompt_are_the_merged_models(
    base: Path, adapters: Folders, merged: Folders
) -> None:
    found = []
    for model, adapter in ((base, adapters["french"]), (merged["french"], None)):
        async with running(model, max_num_batched_tokens=16) as engine:
            [event, *_] = await answer(engine, asking(adapter, num=1, prompt_logprobs=2))
        packed = packed_in(event)
        assert packed is not None
        found.append([each.logprob for each in unpacked(packed, PROMPT)])
    assert len(found[0]) == len(PROMPT) - 1
    assert found[0] == pytest.approx(found[1], abs=1e-4)


def test_two_parts_before_the_loop_are_refused(base: Path) -> None:
    if "dynamo" not in folders():
        pytest.skip("the part that hands K/V over was removed")
    taker = {"role": "decode", "secret": "x" * 32, "endpoint": None, "timeout_s": 1.0,
             "transport": "tcp"}  # fmt: skip
    parts = {"dynamo": taker, "lora": asdict(LIMITS)}
    with pytest.raises(EngineStartError, match="dynamo and lora cannot both be on"):
        ABOUT.create(EngineSpec("native", model_dir=str(base), parts=parts))
