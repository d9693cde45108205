"""The model as Ollama's clients know it: its names, and what is known of it."""

from __future__ import annotations

import hashlib
import re
from dataclasses import dataclass
from datetime import UTC, datetime
from typing import Any, Final

from profiles.catalogue.catalogue import load
from profiles.catalogue.models import Model
from profiles.catalogue.parameters import num_parameters
from service.runtime import Runtime, ServedModel

ARCHITECTURE: Final = "gptoss"
TAG: Final = ":latest"
_SIZED: Final = re.compile(r"(?:.*/)?(gpt-oss(?:-safeguard)?)-(\d+b)")  # of OpenAI's names


@dataclass(frozen=True, slots=True)
class OllamaNames:
    """In a Runtime: the API is on, and clients know the model by these names."""

    listed: tuple[str, ...]


def names_of(model: ServedModel) -> tuple[str, ...]:
    """Ollama's form of each name: `nano:latest`, `gpt-oss:20b`."""
    known = (model.root, *model.names)
    sized = [f"{found[1]}:{found[2]}" for name in known if (found := _SIZED.fullmatch(name))]
    tagged = [name if ":" in name else f"{name}{TAG}" for name in model.listed]
    return tuple(dict.fromkeys((*tagged, *sized)))


def timestamp(seconds: float) -> str:
    """As Ollama writes times."""
    return datetime.fromtimestamp(seconds, UTC).isoformat().replace("+00:00", "Z")


def listed_model(name: str, runtime: Runtime) -> dict[str, Any]:
    """A model of `/api/tags`."""
    about = described(runtime.model)
    return {
        "name": name,
        "model": name,
        "modified_at": timestamp(runtime.model.created),
        "size": about.size,
        "digest": about.digest,
        "details": about.details,
    }


def running_model(name: str, runtime: Runtime) -> dict[str, Any]:
    """A model of `/api/ps`: it is never unloaded by a time of the client's."""
    model = listed_model(name, runtime)
    del model["modified_at"]
    profile = runtime.model.profile
    is_on_gpu = profile is not None and profile.hardware != "cpu"
    return model | {
        "expires_at": "0001-01-01T00:00:00Z",
        "size_vram": model["size"] if is_on_gpu else 0,
        "context_length": runtime.engine.info.max_model_len,
    }


def shown_model(runtime: Runtime) -> dict[str, Any]:
    """The answer of `/api/show`."""
    model, about = runtime.model, described(runtime.model)
    info: dict[str, Any] = {
        "general.architecture": ARCHITECTURE,
        "general.basename": model.id,
        "general.parameter_count": about.num_parameters,
        f"{ARCHITECTURE}.context_length": runtime.engine.info.max_model_len,
    }
    if about.known is not None:
        shape = about.known.shape
        info |= {
            f"{ARCHITECTURE}.block_count": shape.num_hidden_layers,
            f"{ARCHITECTURE}.embedding_length": shape.hidden_size,
            f"{ARCHITECTURE}.expert_count": shape.num_local_experts,
            f"{ARCHITECTURE}.vocab_size": shape.vocab_size,
        }
    return {
        "license": model.license or "",
        "modelfile": f"# {model.root}, served by Harmonium: it has no modelfile.\n",
        "parameters": f"temperature {model.temperature:g}",
        "template": "",
        "details": about.details,
        "model_info": info,
        "capabilities": ["completion", "tools", "thinking"],
        "modified_at": timestamp(model.created),
    }


@dataclass(frozen=True, slots=True)
class _Described:
    known: Model | None  # of the catalogue
    num_parameters: int
    size: int  # bytes of its files; 0 where they are not known
    digest: str
    details: dict[str, Any]


def described(model: ServedModel) -> _Described:
    models = load().models.values()
    known = next((each for each in models if model.root in each.names), None)
    size = sum(f.size_bytes for f in known.artifacts.files) if known and known.artifacts else 0
    count = num_parameters(known.shape) if known else 0
    precision = model.profile.precision.upper() if model.profile else ""
    details = {
        "parent_model": model.parent or "",
        "format": "safetensors",
        "family": ARCHITECTURE,
        "families": [ARCHITECTURE],
        "parameter_size": _short(count),
        "quantization_level": precision,
    }
    files = (model.root, *model.assets, *((model.adapter.key,) if model.adapter else ()))
    digest = hashlib.sha256("\n".join(files).encode()).hexdigest()
    return _Described(known, count, size, digest, details)


def _short(count: int) -> str:
    """As Ollama writes it: 20.9B."""
    for size, unit in ((1e9, "B"), (1e6, "M")):
        if count >= size:
            return f"{count / size:.1f}{unit}"
    return str(count) if count else ""
