"""llama.cpp by llama-cpp-python's low-level bindings; the only module that imports them."""

from __future__ import annotations

import ctypes
import logging
import weakref
from dataclasses import dataclass
from pathlib import Path
from typing import Final, NamedTuple

import llama_cpp
import numpy as np
from llama_cpp._ggml import libggml
from numpy.typing import NDArray

from engines.errors import EngineStartError
from engines.llama_cpp.config import KvDtype
from profiles.catalogue.models import Precision
from profiles.checkpoints.gguf import precision_of

log = logging.getLogger(__name__)

ARCHITECTURE: Final = "gpt-oss"
_KV_TYPES: Final[dict[KvDtype, int]] = {
    "fp16": llama_cpp.GGML_TYPE_F16,
    "bf16": 30,  # GGML_TYPE_BF16, which the bindings leave out
    "q8_0": llama_cpp.GGML_TYPE_Q8_0,
}
MAX_OUTPUTS: Final = 64  # rows of logits of a step beside one of each sequence
_GPU: Final = 1  # GGML_BACKEND_DEVICE_TYPE_GPU
_NO_CELL: Final = 1  # llama_decode's answer where no cell is free
_ERROR: Final = 4  # GGML_LOG_LEVEL_ERROR; the rest of its log is for debugging
_ggml: Final = libggml  # of its functions the bindings name but a few
_ggml.ggml_backend_dev_count.restype = ctypes.c_size_t
_ggml.ggml_backend_dev_get.restype = ctypes.c_void_p

_said: list[str] = []  # what it complained of while something was loaded


@llama_cpp.llama_log_callback  # type: ignore[untyped-decorator]
def _hear(level: int, text: bytes, _: object) -> None:
    line = text.decode("utf-8", "replace").strip()
    if not line or line == ".":
        return
    if level == _ERROR:
        _said.append(line)
    log.log(logging.ERROR if level == _ERROR else logging.DEBUG, "%s", line)


class BatchRun(NamedTuple):
    """Consecutive tokens of one sequence, to be computed in a step."""

    sequence: int
    start: int  # position of the first
    token_ids: list[int]
    num_outputs: int  # of the last tokens; their logits are wanted


class GgufModel:
    """The weights of a GGUF file, and what its head says of them."""

    def __init__(self, path: Path, gpu_layers: int) -> None:
        """Load a file, `gpu_layers` of its layers on the GPU (-1: all); raises EngineStartError."""
        llama_cpp.llama_log_set(_hear, ctypes.c_void_p(0))
        llama_cpp.llama_backend_init()
        _said.clear()
        params = llama_cpp.llama_model_default_params()
        params.n_gpu_layers = gpu_layers
        params.split_mode = llama_cpp.LLAMA_SPLIT_MODE_NONE
        self.path = path
        self.handle = llama_cpp.llama_model_load_from_file(str(path).encode(), params)
        if not self.handle:
            raise EngineStartError(f"{path}: llama.cpp cannot load it: {_reason()}")
        weakref.finalize(self, llama_cpp.llama_model_free, self.handle)
        if (found := self._text("general.architecture")) != ARCHITECTURE:
            raise EngineStartError(f"{path}: its architecture is {found!r}; use {ARCHITECTURE!r}")

    @property
    def precision(self) -> Precision:
        """The experts' format, as a profile's nearest precision."""
        file_type = self._text("general.file_type")
        num_weights = int(llama_cpp.llama_model_n_params(self.handle))
        return precision_of(int(file_type) if file_type else None, self.num_bytes, num_weights)

    @property
    def vocab_size(self) -> int:
        vocab = llama_cpp.llama_model_get_vocab(self.handle)
        return int(llama_cpp.llama_vocab_n_tokens(vocab))

    @property
    def max_position_embeddings(self) -> int:
        """The context length that the model was trained for, in tokens."""
        return int(llama_cpp.llama_model_n_ctx_train(self.handle))

    @property
    def sliding_window(self) -> int:
        return int(llama_cpp.llama_model_n_swa(self.handle))

    @property
    def num_layers(self) -> int:
        return int(llama_cpp.llama_model_n_layer(self.handle))

    @property
    def kv_values(self) -> int:
        """How many numbers one layer keeps of one token, keys and values together."""
        sizes = [self._text(f"{ARCHITECTURE}.attention.{of}_length") for of in ("key", "value")]
        num_heads = int(llama_cpp.llama_model_n_head_kv(self.handle))
        return num_heads * sum(int(size or 0) for size in sizes)

    @property
    def num_bytes(self) -> int:
        return int(llama_cpp.llama_model_size(self.handle))

    def _text(self, key: str) -> str | None:
        buffer = ctypes.create_string_buffer(128)
        length = llama_cpp.llama_model_meta_val_str(self.handle, key.encode(), buffer, 128)
        return buffer.value.decode() if length >= 0 else None


@dataclass(frozen=True, slots=True)
class Room:
    """What a context is made for."""

    num_cells: int  # of K/V, shared by all sequences
    num_sequences: int
    num_batched_tokens: int
    num_threads: int
    kv_dtype: KvDtype
    is_window_kept: bool  # layers with a window keep all cells too, for prefixes to be found in
    is_on_gpu: bool


class Context:
    """A model's K/V and buffers; implements engines.llama_cpp.cells.Memory."""

    def __init__(self, model: GgufModel, room: Room) -> None:
        """Make room for K/V and a step's buffers; raises EngineStartError where there is none."""
        _said.clear()
        self._model, self._room = model, room
        self._handle = llama_cpp.llama_init_from_model(model.handle, _params(room))
        if not self._handle:
            raise EngineStartError(f"{model.path}: no room for its K/V: {_reason()}")
        weakref.finalize(self, llama_cpp.llama_free, self._handle)
        self._memory = llama_cpp.llama_get_memory(self._handle)
        self._batch = llama_cpp.llama_batch_init(room.num_batched_tokens, 0, 1)
        weakref.finalize(self, llama_cpp.llama_batch_free, self._batch)
        self._vocab_size = model.vocab_size

    def copy(self, source: int, target: int, start: int, end: int) -> None:
        llama_cpp.llama_memory_seq_cp(self._memory, source, target, start, end)

    def remove(self, sequence: int, start: int, end: int) -> None:
        """Take the cells [start, end) from a sequence; an end of -1 is beyond any position."""
        llama_cpp.llama_memory_seq_rm(self._memory, sequence, start, end)

    def decode(self, rows: list[BatchRun]) -> NDArray[np.float32]:
        """Compute the rows, and return the logits that they want, at most MAX_OUTPUTS
        or one of each sequence.

        The array (outputs, vocab_size) of float32 is llama.cpp's own, and the next call overwrites
        it. Raises MemoryError where no cells are left and RuntimeError where computing failed.
        """
        self._fill(rows)
        status = llama_cpp.llama_decode(self._handle, self._batch)
        if status == _NO_CELL:
            raise MemoryError("llama.cpp found no free cells for the step")
        if status != 0:
            raise RuntimeError(f"llama_decode returned {status}: {_reason()}")
        num_outputs = sum(row.num_outputs for row in rows)
        if num_outputs == 0:
            llama_cpp.llama_synchronize(self._handle)
            return np.empty((0, self._vocab_size), np.float32)
        logits = llama_cpp.llama_get_logits(self._handle)
        return np.ctypeslib.as_array(logits, (num_outputs, self._vocab_size))

    def _fill(self, rows: list[BatchRun]) -> None:
        batch, i = self._batch, 0
        for row in rows:
            first_output = row.start + len(row.token_ids) - row.num_outputs
            for position, token_id in enumerate(row.token_ids, start=row.start):
                batch.token[i], batch.pos[i] = token_id, position
                batch.n_seq_id[i], batch.seq_id[i][0] = 1, row.sequence
                batch.logits[i] = position >= first_output
                i += 1
        batch.n_tokens = i


def has_gpu() -> bool:
    """Whether this build of llama.cpp computes on a GPU."""
    return bool(llama_cpp.llama_supports_gpu_offload())


def free_gpu_bytes() -> int | None:
    for index in range(_ggml.ggml_backend_dev_count()):
        device = ctypes.c_void_p(_ggml.ggml_backend_dev_get(ctypes.c_size_t(index)))
        if _ggml.ggml_backend_dev_type(device) == _GPU:
            free, total = ctypes.c_size_t(), ctypes.c_size_t()
            _ggml.ggml_backend_dev_memory(device, ctypes.byref(free), ctypes.byref(total))
            return free.value
    return None


def version() -> str:
    """Return the version of the bindings; each has a revision of llama.cpp inside."""
    return str(llama_cpp.__version__)


def _params(room: Room) -> llama_cpp.llama_context_params:
    params = llama_cpp.llama_context_default_params()
    params.n_ctx = room.num_cells
    # One piece for a whole step: within it no cell may be taken that an earlier piece has filled.
    params.n_batch = params.n_ubatch = room.num_batched_tokens
    params.n_seq_max = room.num_sequences
    # Logits of a row are 0.8 MB for gpt-oss, and by default every token of a step has room for its.
    params.n_outputs_max = max(room.num_sequences, MAX_OUTPUTS)
    params.n_threads = params.n_threads_batch = room.num_threads
    params.type_k = params.type_v = _KV_TYPES[room.kv_dtype]
    params.kv_unified = True
    params.swa_full = room.is_window_kept
    params.offload_kqv = params.op_offload = room.is_on_gpu
    params.no_perf = True
    return params


def _reason() -> str:
    return "; ".join(_said[-3:]) or "it does not say why"
