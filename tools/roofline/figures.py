"""Published and measured speeds, as work and the seconds it took: figures.yaml.

The model is fitted to some of the rows (`fits`), and judged by the others.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
from functools import cache
from pathlib import Path
from typing import Literal

import yaml
from pydantic import BaseModel, ConfigDict, Field

from parts.plan.speed import Workload, mean_context, prompt_work
from parts.plan.work import PlannedEngine, Work, decode_work, prefill_work
from profiles.catalogue.models import KvDtype, Model, Parallelism
from profiles.hardware.gpus import BY_KEY, Architecture, KnownGpu
from profiles.selection.memory import KV_BYTES

FIGURES = Path(__file__).with_name("figures.yaml")

# decode: tokens/s of all streams between the first and the last token. prefill: prompt tokens/s
# of so many prompts at once. serving: output tokens/s of so many users who ask again and again.
# offline: the same per GPU with all the sequences that fit.
Kind = Literal["decode", "prefill", "serving", "offline"]


class FigureRow(BaseModel):
    """One figure of a set."""

    model_config = ConfigDict(frozen=True, extra="forbid")

    streams: int
    tokens_per_s: float
    ttft_s: float | None = None  # mean, where all streams begin at once; nothing is fitted to it
    isl: int | None = None  # the set's, if not given
    osl: int | None = None
    fits: bool = False


class FigureSet(BaseModel):
    """Figures of one engine on one machine from one source."""

    model_config = ConfigDict(frozen=True, extra="forbid")

    engine: str
    by: str = ""  # who measured, where it was a like engine that stands in for it
    gpu: str
    memory_tb_per_s: float | None = None  # where the board differs from the table's
    model: str
    kind: Kind
    split: Parallelism = Parallelism()
    kv_dtype: KvDtype = "bf16"
    dense_bytes: float = 2
    step_tokens: int = 8192
    isl: int | None = None
    osl: int | None = None
    source: str = Field(min_length=1)
    rows: tuple[FigureRow, ...]


@dataclass(frozen=True, slots=True)
class Figure:
    """One measured speed and the work that it was measured at."""

    group: FigureSet
    row: FigureRow
    deployment: PlannedEngine
    work: Work
    seconds: float  # that the work took

    @property
    def architecture(self) -> Architecture:
        """The GPUs' architecture."""
        return self.deployment.gpu.architecture

    @property
    def load(self) -> Workload:
        """The workload of a `serving` row."""
        isl, osl = self.row.isl or self.group.isl, self.row.osl or self.group.osl
        assert isl is not None, self.group.source
        assert osl is not None, self.group.source
        return Workload(self.row.streams, isl, osl)

    @property
    def label(self) -> str:
        """'gpt-oss-20b, 32 streams, 128 in, 512 out'."""
        isl, osl = self.row.isl or self.group.isl, self.row.osl or self.group.osl
        count = f"{self.row.streams:,} {'prompt' if self.group.kind == 'prefill' else 'stream'}"
        count += "" if self.row.streams == 1 else "s"
        out = "" if osl is None else f", {osl:,} out"
        return f"{self.group.model}, {count}, {isl:,} in{out}"

    @property
    def machine(self) -> str:
        """'h100', 'h100, TP 8' or 'b200, DEP 2'."""
        split = self.group.split
        if split.tp == 1:
            return self.group.gpu
        return f"{self.group.gpu}, {'DEP' if split.attention_dp else 'TP'} {split.tp}"


def load(models: Mapping[str, Model], path: Path = FIGURES) -> tuple[Figure, ...]:
    """Read every row of figures.yaml, in its order."""
    return tuple(_figure(models, group, row) for group in _sets(path) for row in group.rows)


@cache
def _sets(path: Path) -> tuple[FigureSet, ...]:
    content = yaml.safe_load(path.read_text(encoding="utf-8"))
    return tuple(FigureSet.model_validate(each) for each in content)


def _figure(models: Mapping[str, Model], group: FigureSet, row: FigureRow) -> Figure:
    isl, osl = row.isl or group.isl, row.osl or group.osl
    assert isl is not None, group.source
    deployment = PlannedEngine(
        models[group.model].shape,
        _speed(group),
        group.split,
        dense_bytes=group.dense_bytes,
        kv_bytes=KV_BYTES[group.kv_dtype],
        step_tokens=group.step_tokens,
    )
    if group.kind == "prefill":
        work = prefill_work(deployment, isl, row.streams)
        return Figure(group, row, deployment, work, row.streams * isl / row.tokens_per_s)
    assert osl is not None, group.source
    num_gpus = group.split.tp if group.kind == "offline" else 1
    if group.kind == "decode":
        work = decode_work(deployment, row.streams, mean_context(isl, osl))
    else:
        work = _step_work(deployment, row.streams, isl, osl)
    return Figure(group, row, deployment, work, row.streams / (num_gpus * row.tokens_per_s))


def _step_work(deployment: PlannedEngine, num_users: int, isl: int, osl: int) -> Work:
    """A decode step of all users, with the prompts that come in on average beside it."""
    decode = decode_work(deployment, num_users, mean_context(isl, osl))
    return decode + prompt_work(deployment, num_users, isl, osl) * (num_users / osl)


def _speed(group: FigureSet) -> KnownGpu:
    speed = BY_KEY[group.gpu]
    if group.memory_tb_per_s is None:
        return speed
    return replace(speed, memory_tb_per_s=group.memory_tb_per_s)
