"""From options to a core: the one place that knows backends, models and parts."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, ClassVar

from engines.errors import EngineStartError
from engines.native.backends import load_backend
from engines.native.backends.base import Backend, Capacity
from engines.native.backends.torch_errors import TorchErrors
from engines.native.config import ModelConfig, NativeConfig
from engines.native.engine_option import is_around
from engines.native.loop.block_manager import BlockManager
from engines.native.loop.core import EngineCore
from engines.native.loop.limits import SchedulerLimits
from engines.native.loop.option import Option, calls
from engines.native.loop.scheduler import Scheduler
from engines.native.measured_costs import measured_costs
from engines.native.options import seconds_of
from engines.parts import facet, facets


class EnginePart:
    """ENGINE of parts/<name>/engine.py: the options that a part has for the step loop."""

    needs_prefix_cache: ClassVar[bool] = True  # where a spec names it

    def for_backend(self, config: NativeConfig, capacity: Capacity) -> Option | None:
        """What it adds where the engine's options ask for it, or the backend has what it needs.

        Raises EngineStartError where the backend cannot do what the options ask for.
        """
        return None

    def config_for(self, config: NativeConfig, given: Mapping[str, Any]) -> NativeConfig:
        """The engine's options with those that follow from what its spec says of the part."""
        return config

    def for_spec(self, given: Mapping[str, Any]) -> Option | None:
        """What it adds where an engine's spec names it; raises EngineStartError."""
        return None


def options_of_backend(config: NativeConfig, capacity: Capacity) -> list[Option]:
    """The options that follow from the engine's options and from what the backend can do."""
    parts = facets("engine", EnginePart).values()
    made = [option for part in parts if (option := part.for_backend(config, capacity)) is not None]
    if config.speculation != "none" and not calls(made, "drafts"):
        raise EngineStartError(
            f"speculation is {config.speculation!r}, and no part makes drafts; use 'none'"
        )
    return made


def config_of_spec(given: Mapping[str, Mapping[str, Any]], config: NativeConfig) -> NativeConfig:
    """The engine's options, with what the parts need that a spec names."""
    for name, values in given.items():
        part = facet(name, "engine", EnginePart)
        assert part is not None, "check_understood() lets no other pass"
        config = part.config_for(config, values)
    return config


def options_of_spec(given: Mapping[str, Mapping[str, Any]], config: NativeConfig) -> list[Option]:
    """The options that a spec names, not yet started; raises EngineStartError."""
    found = {}
    for name, values in given.items():
        part = facet(name, "engine", EnginePart)
        assert part is not None, "check_understood() lets no other pass"
        if part.needs_prefix_cache and not config.enable_prefix_caching:
            raise EngineStartError(
                f"{name} is set and enable_prefix_caching is false: without the prefix cache"
                f" there is no {name}"
            )
        if (option := part.for_spec(values)) is not None:
            found[name] = option
    around = [name for name, option in found.items() if is_around(option)]
    if len(around) > 1:
        raise EngineStartError(
            f"{' and '.join(around)} cannot both be on in one engine; unset the settings of one"
        )
    return [*found.values()]


def load_core(config: NativeConfig) -> EngineCore:
    """Load the checkpoint into a core; raises EngineStartError naming what is wrong with it."""
    model = ModelConfig.from_dir(config.model_dir)
    core = assemble_core(
        config, load_backend(config, model), model.sliding_window, model.vocab_size
    )
    if config.max_token_gap_ms is not None:
        limits = core.scheduler.limits
        core.scheduler.costs = measured_costs(config, model, core.backend, limits)
    return core


def assemble_core(
    config: NativeConfig, backend: Backend, sliding_window: int, vocab_size: int
) -> EngineCore:
    """A core of this backend, with a scheduler for its capacity; the costs of steps are made up."""
    capacity = backend.capacity
    options = options_of_backend(config, capacity)
    blocks = BlockManager(
        capacity.num_blocks,
        capacity.block_size,
        sliding_window,
        is_prefix_caching=config.enable_prefix_caching,
        has_separate_answer_keys=config.batch_invariant,
    )
    limits = SchedulerLimits(
        max_model_len=capacity.max_model_len,
        max_num_seqs=config.max_num_seqs,
        max_num_batched_tokens=config.max_num_batched_tokens,
        max_drafts=0 if config.speculation == "none" else capacity.max_drafts,
        max_token_gap_s=seconds_of(config.max_token_gap_ms),
    )
    core = EngineCore(
        backend,
        Scheduler(blocks, limits),
        vocab_size,
        is_overlapped=config.overlap_steps,
        errors=TorchErrors(),
    )
    core.use(options)
    return core
