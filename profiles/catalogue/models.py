"""Models and profiles: validated, frozen, and nothing but data.

A profile is one way to serve one model: an engine, a GPU requirement, a degree of
parallelism, limits and the engine's own options. Its `id` covers all that changes
what runs; `status`, `source` and the model's description say how far the values can
be trusted and may be edited without breaking an id that an operator has pinned.
"""

from __future__ import annotations

import hashlib
import json
from typing import Annotated, Any, Literal, Self

from pydantic import BaseModel, ConfigDict, Field, model_validator

from profiles.catalogue.engines import engine_of
from profiles.hardware.machine import Family

Goal = Literal["latency", "balanced", "throughput"]
Precision = Literal["mxfp4", "bf16", "fp32"]
KvDtype = Literal["fp8", "bf16", "fp16", "fp32"]
Status = Literal["tuned", "published", "untuned", "compiled", "planned"]

Positive = Annotated[int, Field(gt=0)]
Size = Annotated[int, Field(ge=1, lt=1 << 31)]  # of a model, by its config.json


class Record(BaseModel):
    """A frozen record that refuses keys it does not know."""

    model_config = ConfigDict(frozen=True, extra="forbid", strict=False)


class ModelShape(Record):
    """The sizes of a gpt-oss checkpoint, named as its config.json names them."""

    num_hidden_layers: Size  # every other layer attends to a sliding window
    hidden_size: Size
    intermediate_size: Size  # of one expert
    num_local_experts: Size
    num_experts_per_tok: Size
    num_attention_heads: Size
    num_key_value_heads: Size
    head_dim: Size
    vocab_size: Size
    sliding_window: Size
    max_position_embeddings: Size

    @property
    def num_full_layers(self) -> int:
        """Layers that attend to the whole context; in gpt-oss every other one."""
        return -(-self.num_hidden_layers // 2)

    @property
    def num_vocabulary_matrices(self) -> int:
        """The embedding and, as large, the rows that score tokens."""
        return 2


class ArtifactFile(Record):
    """One file of a repository."""

    name: str
    size_bytes: Positive
    sha256: Annotated[str, Field(pattern=r"^[0-9a-f]{64}$")]


class Artifacts(Record):
    """Where a model's files come from and what they must be."""

    repository: str
    revision: str
    files: tuple[ArtifactFile, ...]


class DraftShape(Record):
    """The sizes of an EAGLE3 head: one Llama layer as wide as its model, which looks at three."""

    intermediate_size: Positive
    num_attention_heads: Positive
    num_key_value_heads: Positive
    head_dim: Positive
    draft_vocab_size: Positive  # tokens that it scores by rows of its own


class Model(Record):
    """A model the catalogue can serve."""

    name: str
    description: str
    license: str | None = None  # of the weights, by its SPDX name; None: its owner knows
    shape: ModelShape
    artifacts: Artifacts | None = None  # None: shipped with the package
    gguf: Artifacts | None = None  # the same weights for llama.cpp
    drafts: dict[str, DraftShape] = {}  # the heads of its profiles, by their repository
    aliases: tuple[str, ...] = ()  # what others call it
    temperature: float = 1.0  # of requests that give none
    format: str = "harmony"  # of its conversations: service/chat_format.py finds it by this name
    is_demonstration: bool = False  # it shows what the server does; its answers are of no use

    @property
    def names(self) -> tuple[str, ...]:
        repository = (self.artifacts.repository,) if self.artifacts else ()
        return (self.name, *repository, *self.aliases)

    def artifacts_for(self, engine: str) -> Artifacts | None:
        """The files that an engine is started on; None where the package has to have them."""
        files: Artifacts | None = getattr(self, engine_of(engine).files)
        return files


class GpuRequirement(Record):
    """The GPUs a profile is made for: named boards, a generation, or a capability.

    How many is `tp * pp`, and the memory needed is computed (memory.py).
    """

    names: tuple[str, ...] = ()  # keys of gpus.KNOWN_GPUS
    family: Family | None = None
    min_compute_capability: tuple[int, int] | None = None
    below_compute_capability: tuple[int, int] | None = None  # the first that does not match
    min_memory_gb: Positive | None = None  # of the board; where an engine is known to need more
    label: str = ""  # in the profile's name, where the first of several boards would mislead

    @model_validator(mode="after")
    def _says_something(self) -> Self:
        if not self.names and self.family is None and self.min_compute_capability is None:
            raise ValueError("give names, family or min_compute_capability; omit gpu for a CPU")
        return self


class Parallelism(Record):
    """How the model is spread over GPUs."""

    tp: Positive = 1  # tensor parallel
    pp: Positive = 1  # pipeline stages
    ep: Positive = 1  # expert parallel, inside the tensor-parallel group
    attention_dp: bool = False  # every GPU holds all attention weights and its own sequences

    @model_validator(mode="after")
    def _ep_divides_tp(self) -> Self:
        if self.tp % self.ep:
            raise ValueError(f"ep {self.ep} must divide tp {self.tp}")
        return self


class Limits(Record):
    """The limits every engine has, under the native engine's names."""

    max_model_len: Positive
    max_num_seqs: Positive
    max_num_batched_tokens: Positive


class Profile(Record):
    """One way to serve one model on one kind of machine."""

    model: Model
    engine: str
    goal: Goal
    precision: Precision
    gpu: GpuRequirement | None = None  # None: runs on CPU
    parallelism: Parallelism = Parallelism()
    replicas: Positive = 1  # engines side by side, at least; the selector fills the machine
    limits: Limits
    kv_dtype: KvDtype
    memory_fraction: Annotated[float, Field(gt=0, le=1)] = 0.9  # of a device's memory
    options: dict[str, Any] = {}  # the engine's own, under its own names
    environment: dict[str, str] = {}  # of the engine process
    draft: str = ""  # the repository of the EAGLE3 head that drafts, among `options` too
    draft_revision: str = ""  # its commit
    status: Status
    source: Annotated[str, Field(min_length=1)]

    @model_validator(mode="after")
    def _is_possible(self) -> Self:
        limit = self.model.shape.max_position_embeddings
        if self.limits.max_model_len > limit:
            raise ValueError(
                f"max_model_len {self.limits.max_model_len} exceeds {self.model.name}'s {limit}"
            )
        if self.gpu is None and self.parallelism.pp > 1:
            raise ValueError(f"pp is {self.parallelism.pp}, but a CPU profile has one device")
        if bool(self.draft) != bool(self.draft_revision):
            raise ValueError("give draft and draft_revision together")
        if self.draft and self.draft not in self.model.drafts:
            raise ValueError(f"drafts of {self.model.name} lacks the shape of {self.draft}")
        if clashes := self.options.keys() & self.limits.model_dump().keys():
            raise ValueError(f"{sorted(clashes)} belong under limits, not under options")
        return self

    @property
    def num_devices(self) -> int:
        """GPUs of one engine; 1 on a CPU, however many processes compute there."""
        return 1 if self.gpu is None else self.parallelism.tp * self.parallelism.pp

    @property
    def gpu_layers(self) -> int | None:
        """Layers that the GPU computes, where the host's memory and CPU have the rest."""
        layers = self.options.get("gpu_layers")
        return int(layers) if self.gpu is not None and layers is not None else None

    @property
    def is_rounded(self) -> bool:
        """Whether the engine rounds the checkpoint's experts to MXFP4 while loading."""
        return "quantize" in self.options

    @property
    def draft_shape(self) -> DraftShape | None:
        return self.model.drafts[self.draft] if self.draft else None

    @property
    def gpu_label(self) -> str:
        """Name the hardware in one word: a board, a generation, 'gpu' or 'cpu'."""
        if self.gpu is None:
            return "cpu"
        first = self.gpu.names[0] if self.gpu.names else self.gpu.family or "gpu"
        return self.gpu.label or first

    @property
    def name(self) -> str:
        """The readable name; unique among one model's profiles."""
        split = f"tp{self.parallelism.tp}-pp{self.parallelism.pp}"
        side_by_side = f"-x{self.replicas}" if self.replicas > 1 else ""
        drafts = "-eagle3" if self.draft else ""
        kind = f"{self.engine}-{self.gpu_label}-{self.precision}-{split}-{self.goal}"
        rounded = "-rounded" if self.is_rounded else ""
        return f"{kind}{drafts}{rounded}{side_by_side}"

    @property
    def title(self) -> str:
        """The readable name that is unique in the whole catalogue."""
        return f"{self.model.name}/{self.name}"

    @property
    def tags(self) -> dict[str, str]:
        """The tags that a selector can ask for, with NIM's names as well."""
        return {
            "model": self.model.name,
            "engine": self.engine,
            "llm_engine": self.engine,
            "precision": self.precision,
            "gpu": self.gpu_label,
            "tp": str(self.parallelism.tp),
            "pp": str(self.parallelism.pp),
            "goal": self.goal,
            "profile": self.goal,
            "speculation": "eagle3" if self.draft else self.options.get("speculation", "none"),
        }

    @property
    def artifacts(self) -> Artifacts | None:
        """The files that its engine is started on; None where they are shipped with the package."""
        return self.model.artifacts_for(self.engine)

    @property
    def reads_gguf(self) -> bool:
        """Whether its engine is started on a GGUF file."""
        return engine_of(self.engine).files == "gguf"

    @property
    def _foreign_files(self) -> str:
        """The model's field that lists the files of other engines."""
        return "artifacts" if self.reads_gguf else "gguf"

    @property
    def id(self) -> str:
        """SHA-256 of the canonical content: 64 hex digits, as NIM's profile ids."""
        words: dict[str, Any] = {
            "status": True,
            "source": True,
            "draft": True,  # it is among the options
            "model": {
                "description",
                "license",
                "is_demonstration",
                "aliases",
                "drafts",
                self._foreign_files,
            },
        }
        content = self.model_dump(mode="json", exclude=words)
        if self.replicas == 1:
            del content["replicas"]  # as it was before there were any
        if not self.draft_revision:
            del content["draft_revision"]  # likewise
        canonical = json.dumps(content, sort_keys=True, separators=(",", ":"))
        return hashlib.sha256(canonical.encode()).hexdigest()
