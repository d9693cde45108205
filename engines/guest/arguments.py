"""What the arguments of all guests have in common: limits, GPUs, and options that contradict none.

A guest is a library that schedules and runs requests itself, in a Python of its own; its adapter
translates, and no more.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping
from typing import Any, Final

from engines.errors import EngineStartError
from engines.spec import EngineSpec, check_names, check_understood

_LIMITS: Final = ("max_model_len", "max_num_seqs", "max_num_batched_tokens")
_UNDERSTOOD: Final = (
    "limits",
    "model_dir",
    "vocabulary_path",
    "precision",
    "kv_dtype",
    "memory_fraction",
    "num_devices",
    "tensor_parallel",
    "pipeline_parallel",
    "expert_parallel",
    "attention_dp",
)


def limits_and_options(spec: EngineSpec) -> tuple[dict[str, int], dict[str, Any], int | None]:
    """Take a spec apart: its limits, its options, and how many requests may wait before the guest.

    The limits are those that a guest keeps, by our names. Raises EngineStartError naming what no
    guest understands.
    """
    check_understood(spec, _UNDERSTOOD)
    if spec.model_dir is None:
        raise EngineStartError(f"engine {spec.engine!r} needs model_dir, the checkpoint's folder")
    limits, options = dict(spec.limits), dict(spec.options)
    # A profile has it among its options.
    max_num_waiting = options.pop("max_num_waiting", None)
    max_num_waiting = limits.pop("max_num_waiting", max_num_waiting)
    check_names("limit", limits, _LIMITS)
    check_num_devices(spec)
    return limits, options, max_num_waiting


def lacks_grammar(vocabulary_path: object | None) -> frozenset[str]:
    """What a guest lacks that was not given the tokens' bytes."""
    return frozenset() if vocabulary_path is not None else frozenset({"grammar"})


def check_num_devices(spec: EngineSpec) -> None:
    """Raise EngineStartError unless there are as many GPUs as the split of the model needs."""
    tp, pp = spec.tensor_parallel, spec.pipeline_parallel
    if tp * pp != max(spec.num_devices, 1):
        raise EngineStartError(
            f"tensor_parallel {tp} and pipeline_parallel {pp} need {tp * pp} GPUs, "
            f"but num_devices is {spec.num_devices}"
        )


def check_agreement(
    library: str, options: Mapping[str, Any], given: Mapping[str, Any], ours: Collection[str] = ()
) -> None:
    """Raise EngineStartError for an option that says otherwise what the spec or we decide.

    `given`: what the spec says, by the library's names, which an option may only repeat; `ours`:
    names that no option may have.
    """
    for name, value in options.items():
        if name in ours or given.get(name, value) != value:
            raise EngineStartError(
                f"{library}'s option {name!r} is {value!r}, which this server decides"
                + (f": {given[name]!r}" if name in given else "")
            )


def translated(library: str, name: str, value: str, known: Mapping[str, str]) -> str:
    """Return the library's word for a value; raises EngineStartError naming those there are."""
    if value not in known:
        raise EngineStartError(f"{name} is {value!r}; {library} is given {', '.join(known)}")
    return known[value]
