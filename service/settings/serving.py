"""The settings of model, server, load and kept responses."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Annotated, Any, Literal, get_args

from pydantic import Field, StringConstraints, field_validator, model_validator
from pydantic_settings import BaseSettings

from engines.parts import having
from profiles.catalogue.engines import known_engines
from service.settings.group import SHAPE

LogLevel = Literal["DEBUG", "INFO", "WARNING", "ERROR", "CRITICAL"]
Goal = Literal["latency", "throughput", "balanced"]
_NAME = r"[A-Za-z0-9][A-Za-z0-9._:/-]{0,127}"
_OF_NAMES = "1 to 128 letters, digits and any of ._:/-, the first a letter or digit"
Name = Annotated[str, StringConstraints(pattern=f"^{_NAME}$")]
Names = Annotated[str, StringConstraints(pattern=rf"^{_NAME}(\s*,\s*{_NAME}){{0,15}}$")]
CheckpointUri = Annotated[str, StringConstraints(pattern=r"^(hf|ngc|s3|gs|https?)://")]


class ModelSettings(BaseSettings):
    """Model and profile"""

    model_name: Name | None = Field(
        None,
        json_schema_extra={SHAPE: _OF_NAMES},
        description="The model to serve, e.g. `gpt-oss-20b`. Default: the largest that fits the "
        "machine.",
    )
    model_path: Path | CheckpointUri | None = Field(
        None,
        description="A gpt-oss checkpoint to serve instead of the catalogue's. It is a folder, a "
        "GGUF file, or a source to download from: `hf://organisation/name@revision`,"
        " `ngc://org/team/name:version`, `s3://bucket/prefix`, `gs://bucket/prefix` or"
        " `https://host/prefix`. Append `?file=NAME.gguf` to select one of several GGUF models.",
    )
    model_profile: str | None = Field(
        None,
        description="Profile id (64 hex digits) or name. Unset or `default`: the best profile for "
        "the machine.",
    )
    profile_goal: Goal | None = Field(
        None, description="Prefer profiles tuned for `latency`, `throughput` or `balanced`."
    )
    tags_selector: str | None = Field(
        None, description="Consider only profiles with these tags, e.g. `precision=mxfp4,tp=2`."
    )
    served_model_name: Names | None = Field(
        None,
        json_schema_extra={SHAPE: f"up to 16 names, separated by commas; each has {_OF_NAMES}"},
        description="The model names that clients may use, comma-separated, up to 16. Responses "
        "contain the first. Default: the model's own name and its usual aliases "
        "(`openai/gpt-oss-20b`, `gpt-oss:20b`).",
    )
    max_model_len: int | None = Field(
        None,
        ge=128,
        description="Context length: the maximum number of tokens of prompt and answer together. "
        "Default: the profile's.",
    )
    replicas: int | None = Field(
        None,
        ge=1,
        le=64,
        description="Number of engines, each on its own GPUs. Default: as many as fit.",
    )
    kvcache_percent: float | None = Field(
        None,
        gt=0,
        le=1,
        description="Share of each GPU's memory for weights, KV cache and workspace (0 to 1). "
        "Default: the profile's, usually 0.9. If other programs use the GPU, the native engine "
        "leaves a tenth of the rest to them. Lower it if they need more.",
    )
    kv_cache_dtype: Literal["auto", "fp8"] = Field(
        "auto",
        description="Type of the KV cache. `fp8` halves its memory and changes logits slightly"
        " (docs/engine.md). `auto`: the profile's. Not for llama.cpp.",
    )
    quantize: Literal["mxfp4"] | None = Field(
        None,
        description="`mxfp4` rounds the 16-bit experts of the checkpoint in `NIM_MODEL_PATH` to"
        " MXFP4 while loading, which takes a third of the memory and changes answers"
        " (docs/weights.md). Native engine only. Default: weights are served as they are stored.",
    )
    max_token_gap_ms: float | None = Field(
        None,
        ge=0,
        description="Longest gap between two tokens of a stream, in milliseconds, while other "
        "prompts are processed. 0: no limit. Default: the profile's. The native engine may "
        "exceed the limit, up to 200 ms, when two or more prompts have waited for 3 s. Engines "
        "native and llama_cpp only.",
    )
    batch_invariant: bool = Field(
        False,
        description="Make a request's logits bit-identical in any batch and after an engine "
        "restart. Native engine on GPUs only. This is slower with few streams "
        "(docs/engine.md has the cost).",
    )
    engine_python: str | None = Field(
        None,
        description="The Python of each engine that has its own environment, e.g."
        " `vllm=/opt/vllm/bin/python,tensorrt_llm=/opt/trt/bin/python`, or one path for all "
        "(docs/engines.md). Engines in the server's own environment do not use it.",
    )
    engine_fallback: bool = Field(
        False,
        description="If the profile's engine cannot start, serve the same model with another "
        "engine's best profile. Metrics and metadata report the profile in use.",
    )
    cache_path: Path = Field(
        Path("~/.cache/harmonium"),
        description="Folder for model files, compiled kernels and stored responses. Several hosts "
        "may share it (docs/faults.md); stored responses are then kept on each host.",
    )

    disable_model_download: bool = Field(
        False,
        description="Never download. If the cache and `NIM_MODEL_PATH` lack a file, the start "
        "fails with its name.",
    )
    repository_override: str | None = Field(
        None,
        description="Source of model files instead of the model's own repository:"
        " `s3://bucket/prefix`, `gs://bucket/prefix`, `https://host/prefix`,"
        " `hf://organisation/name@revision` or `ngc://org/team/name:version`.",
    )

    @model_validator(mode="before")
    @classmethod
    def _take_path_from_name(cls, values: dict[str, Any]) -> dict[str, Any]:
        """NIM's operator gives a checkpoint's folder, or the cache's, as NIM_MODEL_NAME."""
        name = values.get("model_name")
        if not isinstance(name, str) or not name.startswith("/"):
            return values
        others = {key: value for key, value in values.items() if key != "model_name"}
        if not others.get("model_path"):
            return {**others, "model_path": name}
        is_cache = name.rstrip("/") == str(others.get("cache_path", "")).rstrip("/")
        return others if is_cache else values  # a name has no slash in front: it is refused below

    @field_validator("served_model_name")
    @classmethod
    def _check_names(cls, value: str | None) -> str | None:
        names = _split(value)
        if len({*names}) < len(names):
            raise ValueError("a name is listed twice")
        return value

    @field_validator("tags_selector")
    @classmethod
    def _check_tags(cls, value: str | None) -> str | None:
        if value and not all(re.fullmatch(r"\s*\w+=[^=]+", pair) for pair in value.split(",")):
            raise ValueError("write tags as tag=value, separated by commas")
        return value

    @field_validator("engine_python")
    @classmethod
    def _check_pythons(cls, value: str | None) -> str | None:
        _pythons(value)
        return value

    @field_validator("cache_path", "model_path")
    @classmethod
    def _expand_model(cls, value: Path | str | None) -> Path | str | None:
        return value.expanduser() if isinstance(value, Path) else value

    @property
    def served_names(self) -> tuple[str, ...]:
        """The model's configured names; answers contain the first."""
        return _split(self.served_model_name)

    @property
    def engine_pythons(self) -> dict[str, Path]:
        """The Python of each engine that has one of its own; "" means all others."""
        return _pythons(self.engine_python)

    @property
    def tags(self) -> dict[str, str]:
        """The tags a profile must have, by name."""
        pairs = (pair.split("=") for pair in (self.tags_selector or "").split(",") if pair)
        return {name.strip(): value.strip() for name, value in pairs}


def _split(names: str | None) -> tuple[str, ...]:
    return tuple(name.strip() for name in names.split(",")) if names else ()


def _pythons(value: str | None) -> dict[str, Path]:
    """Read `vllm=/a,tensorrt_llm=/b` or `/a`; raises ValueError that names what is wrong."""
    found: dict[str, Path] = {}
    for part in filter(None, (value or "").split(",")):
        engine, _, path = part.rpartition("=")
        engine = engine.strip().replace("-", "_")
        known = (*known_engines(), *having("adapter"))
        if engine and engine not in known:
            names = ", ".join(known)
            raise ValueError(f"'{engine}' is not an engine; write engine=path, with one of {names}")
        if engine in found or not path.strip():
            raise ValueError("write engine=path, separated by commas, each engine once")
        found[engine] = Path(path.strip()).expanduser()
    return found


class ServerSettings(BaseSettings):
    """Server and log"""

    server_host: str = Field(
        "127.0.0.1",
        min_length=1,
        description="Address to listen on; `::` is every address, IPv4 and IPv6.",
    )
    server_port: int = Field(
        8000, ge=0, le=65535, description="Port to listen on; 0: any free port."
    )
    api_workers: int | None = Field(
        None,
        ge=1,
        le=64,
        description="Number of API processes; all of them share the engines. Unset: one, or two "
        "per engine on a server's GPUs, as far as CPU cores and memory allow.",
    )
    max_connections: int = Field(
        8192, ge=1, description="Maximum open connections per API worker; more are refused."
    )
    max_connections_per_address: int | None = Field(
        None,
        ge=1,
        description="Maximum open connections per client address and API worker. Leave it "
        "unset behind a proxy, where all clients share the proxy's address.",
    )
    max_body_bytes: int = Field(
        10 * 1024 * 1024, ge=1024, description="Maximum size of a request body, in bytes."
    )
    allow_engine_kill: bool | None = Field(
        None,
        description="Allow callers to kill the engine (`POST /v1/engine/kill`, scope `admin`). The"
        " playground uses this to show that answers continue after an engine restart. Unset: only"
        " where no key is needed and only this machine can reach the server.",
    )
    drain_grace_s: float = Field(
        20.0,
        ge=0,
        le=3600,
        description="Seconds that running requests have to finish at a graceful shutdown. The "
        "default fits the 30 s that Kubernetes and NVIDIA's NIM Operator give a pod.",
    )
    log_level: LogLevel = Field("INFO", description="Minimum severity of log lines.")
    jsonl_logging: bool = Field(False, description="Write each log line as one JSON object.")

    @field_validator("log_level", mode="before")
    @classmethod
    def _upper(cls, value: object) -> object:
        if isinstance(value, str) and value.upper() in get_args(LogLevel):
            return value.upper()
        return value


class LoadSettings(BaseSettings):
    """Load and limits"""

    max_queue_wait_s: float = Field(
        30.0,
        gt=0,
        description="Longest time in the queue, in seconds. A request that has not started by "
        "then is refused.",
    )
    max_queue_length: int | None = Field(
        None, ge=1, description="Maximum requests in an engine's queue. Default: no limit."
    )
    request_timeout_s: float | None = Field(
        None, gt=0, description="Maximum seconds per request. Default: no limit."
    )
    min_priority: int = Field(
        0,
        description="The most urgent `priority` that a request may set; lower values are served "
        "first. Keys with the scope `priority` may set any. -1 allows `service_tier` `priority` to "
        "all.",
    )
    rate_limit_requests: int | None = Field(
        None,
        ge=1,
        description="Requests per minute and caller. A key's own limit takes precedence.",
    )
    rate_limit_tokens: int | None = Field(
        None, ge=1, description="Tokens of prompts and answers per minute and caller."
    )
    rate_limit_concurrent: int | None = Field(
        None, ge=1, description="Maximum concurrent requests per caller."
    )
    engine_step_timeout_s: float = Field(
        120.0,
        ge=1,
        description="Restart the engine if it has running requests but completes no step for "
        "this many seconds.",
    )


class DatabaseSettings(BaseSettings):
    """Stored responses"""

    responses_path: Path | None = Field(
        None,
        description="The SQLite file that stores responses, on a disk of this host alone. Default: "
        "`responses/responses.sqlite` in the cache; if other hosts may open the cache's volume, "
        "`harmonium-UID/` below `TMPDIR`.",
    )

    @field_validator("responses_path")
    @classmethod
    def _expand_file(cls, value: Path | None) -> Path | None:
        return value.expanduser() if value else value
