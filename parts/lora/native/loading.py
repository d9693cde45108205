"""Reading an adapter for the native engine: its matrices, checked and scaled."""

from __future__ import annotations

from collections.abc import Mapping
from math import prod
from pathlib import Path
from typing import Any, Final

import numpy as np

from engines.base import Adapter
from engines.errors import EngineStartError, InvalidRequest
from engines.native.backends.base import AdapterTable, Addend
from engines.native.host.memory import available_bytes
from engines.native.weights import TensorSpec
from parts.lora.changes import read_adapter
from parts.lora.files import WEIGHTS, AdapterError, check_native, served_adapter

_MOST_BYTES: Final = 4  # of a value
_COPIES: Final = 4  # of its content, while it is read: some are wider than the file's values
_MOST_HEADER: Final = 1 << 20


class AdapterLoader:
    """Makes of an adapter's folder what the backend computes with; its calls are for threads."""

    def __init__(self, specs: Mapping[str, TensorSpec], max_rank: int, table: AdapterTable) -> None:
        """`specs`: of the checkpoint's tensors."""
        self._specs, self._max_rank, self._table = specs, max_rank, table
        shapes = [
            each.shape for name, each in specs.items()
            if name.endswith("_proj.weight") or (table.has_experts and name.endswith("_proj"))
        ]  # fmt: skip
        sides = sum(prod(shape[:-2]) * sum(shape[-2:]) for shape in shapes)
        self._max_bytes = max_rank * sides * _MOST_BYTES + _MOST_HEADER

    def load(self, adapter: Adapter) -> Any:
        """What the table's put() takes; raises InvalidRequest and MemoryError."""
        folder = Path(adapter.path)
        try:
            self._check(adapter, folder)
            size, free = (folder / WEIGHTS).stat().st_size, available_bytes()
            if free is not None and _COPIES * size > free:
                raise MemoryError
            changes = self._changes(folder)
            self._check(adapter, folder)  # it may have changed while it was read
        except (AdapterError, EngineStartError, OSError, ValueError) as error:
            raise InvalidRequest(f"the adapter {adapter.name!r} cannot be used: {error}") from None
        return self._table.prepared(changes)

    def _check(self, adapter: Adapter, folder: Path) -> None:
        found = served_adapter(adapter.name, folder, self._max_rank)
        check_native(folder, has_experts=self._table.has_experts)
        size = (folder / WEIGHTS).stat().st_size
        if size > self._max_bytes:
            raise AdapterError(
                f"{folder / WEIGHTS}: has {size} bytes; one of rank {self._max_rank} for this model"
                f" has at most {self._max_bytes}: raise NIM_MAX_LORA_RANK"
            )
        if found.key != adapter.key:
            raise AdapterError(
                f"{folder}: has changed since it was found; load it again (/v1/load_lora_adapter"
                " with load_inplace: true), or set NIM_PEFT_REFRESH_INTERVAL"
            )

    def _changes(self, folder: Path) -> dict[str, Addend]:
        changes = {}
        for name, change in read_adapter(folder, self._specs, is_read=True).items():
            left, right = (each.float().numpy() for each in (change.left, change.right))
            if not (np.isfinite(left).all() and np.isfinite(right).all()):
                raise AdapterError(f"{folder / WEIGHTS}: {name}: its change is not finite")
            if (rank := left.shape[2]) > self._max_rank:  # of experts
                raise AdapterError(
                    f"{folder / WEIGHTS}: {name} has rank {rank}; raise NIM_MAX_LORA_RANK"
                )
            is_experts = len(self._specs[name].shape) == 3  # stored as (experts, in, out)
            pair = (
                (right.swapaxes(1, 2), left.swapaxes(1, 2)) if is_experts else (left[0], right[0])
            )
            changes[name] = Addend(*pair)
        return changes
