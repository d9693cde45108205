"""The engines that keep the contract: an adapter joins by one line of CONTENDERS.

Every test of this folder then runs on it, in this process and behind the engine process. An adapter
that passes them is right; what it cannot do it says in its capabilities, and the tests that
need it say so and pass it over. An engine whose library has an environment of its own joins where
TEST_ENGINE names it and TEST_ENGINE_PYTHON the Python of that environment (make test-vllm); then no
other is tested. It is given a GPU where TEST_ENGINE_DEVICES is 1.
"""

from __future__ import annotations

import os
from base64 import b64encode
from collections.abc import AsyncIterator, Callable, Iterator
from contextlib import asynccontextmanager
from dataclasses import dataclass, replace
from importlib.util import find_spec
from pathlib import Path
from typing import Any, Final

from engines.base import Engine
from engines.factory import about, cpu_only_engines, create
from engines.process.supervisor import EngineSupervisor, RestartPolicy
from engines.spec import EngineSpec
from tests.engines.speculation import NGRAM

MAX_MODEL_LEN: Final = 256
VOCAB_SIZE: Final = 512
LIMITS: Final = {"max_model_len": MAX_MODEL_LEN, "max_num_seqs": 8}
_SCRIPT: Final = {"script": list(range(11, 60)), "step_s": 0.001, "vocab_size": VOCAB_SIZE}
_HAS_LLAMA: Final = find_spec("llama_cpp") is not None
ASKED: Final = os.environ.get("TEST_ENGINE")

ENGINE_PYTHON: Final = os.environ.get("TEST_ENGINE_PYTHON")
_DEVICES: Final = int(os.environ.get("TEST_ENGINE_DEVICES", "0"))  # GPUs of that engine
_VLLM: Final = {"enforce_eager": True, "block_size": 16, "kv_cache_memory_bytes": 64 * 1024**2}
_AHEAD: Final = {"overlap_steps": True, "speculation": NGRAM}
_IS_GPU: Final = Path("/dev/nvidiactl").exists()  # cheaper than asking torch
_NUM_GPUS: Final = len([*Path("/dev").glob("nvidia[0-9]*")])


@dataclass(frozen=True, slots=True)
class Checkpoint:
    """A tiny random gpt-oss in the published format, and its vocabulary."""

    folder: Path
    vocabulary: Path  # the 256 bytes; all other ids are control tokens

    def spec(self, engine: str, options: dict[str, Any], num_devices: int = 0) -> EngineSpec:
        paths = (str(self.folder), str(self.vocabulary))
        return EngineSpec(engine, options, LIMITS, *paths, num_devices=num_devices)


@dataclass(frozen=True, slots=True)
class Contender:
    """An engine and how to start it."""

    spec: Callable[[Checkpoint], EngineSpec]
    is_model: bool = True  # its tokens follow from logits; else from a script
    is_here: bool = True  # this machine can run it
    is_variant: bool = False  # only how it samples may differ from the one above it
    # A prompt is computed otherwise than an answer, and what goes on may choose another near token.
    is_rounded: bool = False
    is_alone_apart: bool = False  # a row may get other bits, and so tokens, in another batch
    python: str | None = None  # of an environment of its own: it is tested in a process only
    is_front: bool = False  # of a worker by Dynamo, which runs what `spec` says


CONTENDERS: Final = {
    "fake": Contender(lambda _: EngineSpec("tests.fake", _SCRIPT, LIMITS), is_model=False),
    "native": Contender(lambda c: c.spec("native", {"num_threads": 1})),
    "native-overlapped": Contender(
        lambda c: c.spec("native", {"num_threads": 1, **_AHEAD}), is_variant=True
    ),
    # As a process of its own too where it is asked for: the tests of ranks kill one.
    "native-tp2": Contender(
        lambda c: replace(c.spec("native", {"num_threads": 1, **_AHEAD}), tensor_parallel=2),
        is_variant=ASKED != "native-tp2",
    ),
    "native-cuda": Contender(
        lambda c: c.spec("native", {"dtype": "bfloat16", "overlap_steps": True}, num_devices=1),
        is_here=_IS_GPU,
        is_rounded=True,
    ),
    "native-cuda-ngram": Contender(
        lambda c: c.spec("native", {"dtype": "bfloat16", **_AHEAD}, num_devices=1),
        is_here=_IS_GPU,
        is_variant=True,
        is_rounded=True,
    ),
    "native-cuda-invariant": Contender(
        lambda c: c.spec(
            "native", {"dtype": "bfloat16", **_AHEAD, "batch_invariant": True}, num_devices=1
        ),
        is_here=_IS_GPU,
        is_variant=True,
    ),
    "native-cuda-tp2": Contender(
        lambda c: replace(
            c.spec("native", {"dtype": "bfloat16", **_AHEAD}, num_devices=2), tensor_parallel=2
        ),
        is_here=_IS_GPU and _NUM_GPUS > 1,
        is_variant=ASKED != "native-cuda-tp2",
        is_rounded=True,
    ),
    "llama_cpp": Contender(
        lambda c: c.spec("llama_cpp", {"num_threads": 1, "block_size": 16}), is_here=_HAS_LLAMA
    ),
    "llama_cpp-cuda": Contender(
        lambda c: c.spec("llama_cpp", {"block_size": 16}, num_devices=1),
        is_here=_HAS_LLAMA and _IS_GPU and "llama_cpp" not in cpu_only_engines(),
        is_rounded=True,
        is_alone_apart=True,
    ),
    "vllm": Contender(
        lambda c: replace(
            c.spec("vllm", _VLLM, num_devices=_DEVICES),
            precision="bf16" if _DEVICES else "fp32",
            memory_fraction=0.2 if _DEVICES else None,  # others may use the GPU too
        ),
        is_here=ASKED == "vllm",
        is_rounded=_DEVICES > 0,
        is_alone_apart=_DEVICES > 0,
        python=ENGINE_PYTHON,
    ),
    "tensorrt_llm": Contender(
        lambda c: replace(c.spec("tensorrt_llm", {}, num_devices=1), precision="bf16"),
        is_here=ASKED == "tensorrt_llm",
        is_rounded=True,
        python=ENGINE_PYTHON,
    ),
    # In this process too: make test-dynamo puts Dynamo's library behind our own packages.
    "dynamo": Contender(
        lambda c: c.spec("native", {"num_threads": 1}),
        is_here=ASKED == "dynamo",
        python=ENGINE_PYTHON,
        is_front=True,
    ),
}


def modes(
    *, models_only: bool = False, variants: bool = False, processes: bool = True
) -> list[str]:
    """The names that parametrise a test: of engines, and behind an engine process `-process`."""

    def names() -> Iterator[str]:
        for name, contender in CONTENDERS.items():
            if not contender.is_here or (models_only and not contender.is_model):
                continue
            if ASKED not in (None, name):
                continue
            if (contender.python is None or contender.is_front) and (
                variants or not contender.is_variant
            ):
                yield name
            if contender.python or (processes and not contender.is_variant):
                yield f"{name}-process"

    return list(names())


def contender_of(mode: str) -> Contender:
    """The engine of a mode."""
    return CONTENDERS[mode.removesuffix("-process")]


@dataclass(frozen=True, slots=True)
class Started:
    """An engine, and what keeps its process if it has one."""

    engine: Engine
    contender: Contender
    supervisor: EngineSupervisor | None


@asynccontextmanager
async def running(mode: str, checkpoint: Checkpoint, **changes: Any) -> AsyncIterator[Started]:
    """Start an engine the way the mode says and leave nothing of it.

    `changes` are limits, and options where LIMITS has no such key.
    """
    contender = contender_of(mode)
    spec = contender.spec(checkpoint)
    limits = {name: value for name, value in changes.items() if name in LIMITS}
    options = {name: value for name, value in changes.items() if name not in LIMITS}
    spec = replace(spec, limits={**spec.limits, **limits}, options={**spec.options, **options})
    if contender.is_front:
        from tests.parts.dynamo.network.deployment import front_of_worker

        async with front_of_worker(spec) as front, _started(mode, front, contender) as started:
            yield started
        return
    async with _started(mode, spec, contender) as started:
        yield started


@asynccontextmanager
async def _started(mode: str, spec: EngineSpec, contender: Contender) -> AsyncIterator[Started]:
    supervisor = _supervisor(spec, contender) if mode.endswith("-process") else None
    if supervisor is not None:
        await supervisor.start()
    engine: Engine = supervisor.client() if supervisor is not None else create(spec)
    await engine.start()
    try:
        yield Started(engine, contender, supervisor)
    finally:
        await engine.stop()
        if supervisor is not None:
            await supervisor.stop()


def _supervisor(spec: EngineSpec, contender: Contender) -> EngineSupervisor:
    return EngineSupervisor(
        spec,
        RestartPolicy(),
        {**os.environ, **about(spec.engine).environment},
        python=None if contender.python is None else Path(contender.python),
    )


def write_checkpoint(folder: Path) -> Checkpoint:
    """Random weights, wide enough that greedy answers vary."""
    import torch
    from transformers import GptOssConfig, GptOssForCausalLM

    torch.manual_seed(0)
    config = GptOssConfig(
        vocab_size=VOCAB_SIZE,
        hidden_size=64,
        intermediate_size=64,
        num_hidden_layers=2,
        num_attention_heads=4,
        num_key_value_heads=2,
        head_dim=64,  # vLLM on a CPU wants it
        num_local_experts=4,
        num_experts_per_tok=2,
        sliding_window=32,
        max_position_embeddings=1024,
        initializer_range=0.5,
        eos_token_id=1,
        pad_token_id=0,
    )
    GptOssForCausalLM(config).save_pretrained(folder)
    vocabulary = folder / "bytes"
    vocabulary.write_bytes(b"".join(b64encode(bytes([i])) + b" %d\n" % i for i in range(256)))
    if _HAS_LLAMA:
        from tests.engines.llama_cpp.gguf_file import write_gguf

        write_gguf(folder, folder / "model.gguf")
    return Checkpoint(folder, vocabulary)
