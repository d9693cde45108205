"""The settings of model, server, load, kept responses and tools."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Annotated, Any, Literal, get_args

from pydantic import Field, SecretStr, StringConstraints, field_validator, model_validator
from pydantic_settings import BaseSettings

from profiles.catalogue.models import EngineName

LogLevel = Literal["DEBUG", "INFO", "WARNING", "ERROR", "CRITICAL"]
Goal = Literal["latency", "throughput", "balanced"]
_NAME = r"[A-Za-z0-9][A-Za-z0-9._:/-]{0,127}"
Name = Annotated[str, StringConstraints(pattern=f"^{_NAME}$")]
Names = Annotated[str, StringConstraints(pattern=rf"^{_NAME}(\s*,\s*{_NAME}){{0,15}}$")]
CheckpointUri = Annotated[str, StringConstraints(pattern=r"^(hf|ngc|s3|gs|https?)://")]


class ModelSettings(BaseSettings):
    """Model and profile"""

    model_name: Name | None = Field(
        None, description="The model to serve, e.g. `gpt-oss-20b`; unset: what fits the machine."
    )
    model_path: Path | CheckpointUri | None = Field(
        None,
        description="A gpt-oss checkpoint of any shape, in place of the catalogue's: a folder, a"
        " GGUF file, or where it is fetched from: `hf://organisation/name@revision`,"
        " `ngc://org/team/name:version`, `s3://bucket/prefix`, `gs://bucket/prefix` or"
        " `https://host/prefix`; `?file=NAME.gguf` after it names one GGUF model of several.",
    )
    model_profile: str | None = Field(
        None, description="Profile id (64 hex digits) or name; unset or `default`: the best fit."
    )
    profile_goal: Goal | None = Field(
        None, description="Prefer profiles tuned for `latency`, `throughput` or `balanced`."
    )
    tags_selector: str | None = Field(
        None, description="Only profiles with these tags, e.g. `precision=mxfp4,tp=2`."
    )
    served_model_name: Names | None = Field(
        None,
        description="The id clients use for the model, or up to 16 with commas between them, of"
        " which answers have the first; unset: the model's own name, and those by which others"
        " know it (`openai/gpt-oss-20b`, `gpt-oss:20b`).",
    )
    max_model_len: int | None = Field(
        None, ge=128, description="Most tokens of prompt and answer together; unset: the profile's."
    )
    replicas: int | None = Field(
        None,
        ge=1,
        le=64,
        description="Engines side by side, each on GPUs of its own; unset: as many as fit.",
    )
    kvcache_percent: float | None = Field(
        None,
        gt=0,
        le=1,
        description="Share of each GPU's memory for weights, KV cache and work space (0 to 1)."
        " Unset: the profile's, mostly 0.9. Lower it where other programs use the GPU too.",
    )
    max_token_gap_ms: float | None = Field(
        None,
        ge=0,
        description="The longest gap between two tokens of a stream, in milliseconds, that reading"
        " other prompts may make; 0: any. Unset: the profile's. Engines native and llama_cpp.",
    )
    batch_invariant: bool = Field(
        False,
        description="A request's logits are the same to the bit whoever runs beside it, and after"
        " an engine's death: only the native engine on GPUs, slower at few streams (docs/engine.md"
        " says what it costs).",
    )
    engine_python: str | None = Field(
        None,
        description="The Python of each engine whose library has an environment of its own, e.g."
        " `vllm=/opt/vllm/bin/python,tensorrt_llm=/opt/trt/bin/python`, or one path for all"
        " (docs/engines.md). An engine that the server's own Python has runs in that.",
    )
    engine_fallback: bool = Field(
        False,
        description="Where the profile's engine cannot start, serve the same model by the next best"
        " profile of another engine; what is reported is what is served.",
    )
    cache_path: Path = Field(
        Path("~/.cache/harmonium"), description="Where model files are kept between starts."
    )

    disable_model_download: bool = Field(
        False,
        description="Fetch nothing: serve what the cache or `NIM_MODEL_PATH` has, or say why.",
    )
    repository_override: str | None = Field(
        None,
        description="Where model files are fetched from, if not from their repository:"
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
            raise ValueError("a name comes twice")
        return value

    @field_validator("tags_selector")
    @classmethod
    def _check_tags(cls, value: str | None) -> str | None:
        if value and not all(re.fullmatch(r"\s*\w+=[^=]+", pair) for pair in value.split(",")):
            raise ValueError("tags are written tag=value, with commas between them")
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
        """What the operator calls the model; answers have the first."""
        return _split(self.served_model_name)

    @property
    def engine_pythons(self) -> dict[str, Path]:
        """The Python of each engine that has one of its own; "" stands for all others."""
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
        if engine and engine not in get_args(EngineName):
            known = ", ".join(get_args(EngineName))
            raise ValueError(f"'{engine}' is no engine; write engine=path, with one of {known}")
        if engine in found or not path.strip():
            raise ValueError("write engine=path with commas between them, each engine once")
        found[engine] = Path(path.strip()).expanduser()
    return found


class ServerSettings(BaseSettings):
    """Server and log"""

    server_host: str = Field("127.0.0.1", min_length=1, description="Address to listen on.")
    server_port: int = Field(8000, ge=0, le=65535, description="Port to listen on; 0 takes any.")
    api_workers: int = Field(
        1, ge=1, le=64, description="Processes that answer HTTP; all of them share one engine."
    )
    max_connections: int = Field(
        8192, ge=1, description="Open connections of each API worker; more are refused."
    )
    max_connections_per_address: int | None = Field(
        None,
        ge=1,
        description="Open connections of one client address at each API worker; leave it unset "
        "behind a proxy, where all clients have the proxy's address.",
    )
    max_body_bytes: int = Field(
        10 * 1024 * 1024, ge=1024, description="Largest request body accepted."
    )
    disable_playground: bool = Field(
        False,
        description="Serve no pages: `/` and `/docs` answer 404. The API stays as it is.",
    )
    sse_keepalive_s: float = Field(
        15.0, gt=0, le=3600, description="Seconds of silence before a stream gets a comment line."
    )
    drain_grace_s: float = Field(
        20.0,
        ge=0,
        le=3600,
        description="Seconds that running requests get to end at shutdown. The default fits into"
        " the 30 s that Kubernetes and NVIDIA's NIM Operator give a pod.",
    )
    log_level: LogLevel = Field("INFO", description="Least severe log line that is written.")
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
        description="Longest time in the queue: a request that has not begun by then is refused.",
    )
    max_queue_length: int | None = Field(
        None, ge=1, description="Most requests in an engine's queue; unset: any number."
    )
    request_timeout_s: float | None = Field(
        None, gt=0, description="Seconds a request may take as a whole; unset: as long as it needs."
    )
    min_priority: int = Field(
        0, description="The most urgent `priority` a request may ask for; lower goes first."
    )
    rate_limit_requests: int | None = Field(
        None, ge=1, description="Requests per minute and caller; a key's own limit goes before."
    )
    rate_limit_tokens: int | None = Field(
        None, ge=1, description="Tokens of prompts and answers per minute and caller."
    )
    rate_limit_concurrent: int | None = Field(
        None, ge=1, description="Requests of one caller that may run at a time."
    )
    engine_step_timeout_s: float = Field(
        120.0,
        ge=1,
        description="Seconds without a step after which an engine that runs requests is restarted.",
    )
    engine_quarantine_s: float = Field(
        600.0, gt=0, description="Seconds a request is refused that the engine died under twice."
    )


class ResponsesSettings(BaseSettings):
    """Kept responses"""

    responses_path: Path | None = Field(
        None,
        description="The SQLite file that keeps responses; unset: `responses/responses.sqlite` in"
        " the cache.",
    )
    redis_url: SecretStr | None = Field(
        None,
        description="A Redis that keeps responses for several replicas, e.g. `redis://host:6379/0`;"
        " unset: the SQLite file.",
    )
    responses_max_age_s: float = Field(
        30 * 24 * 3600.0, gt=0, description="Seconds a response is kept after its last use."
    )
    responses_max_bytes: int = Field(
        1 << 30,
        ge=1 << 20,
        description="All kept responses together; when full, the tenant who has most loses the"
        " least used.",
    )

    @field_validator("redis_url")
    @classmethod
    def _check_scheme(cls, value: SecretStr | None) -> SecretStr | None:
        if value and not value.get_secret_value().startswith(("redis://", "rediss://", "unix://")):
            raise ValueError("the URL must begin with redis://, rediss:// or unix://")
        return value

    @field_validator("responses_path")
    @classmethod
    def _expand_file(cls, value: Path | None) -> Path | None:
        return value.expanduser() if value else value


class ToolSettings(BaseSettings):
    """Built-in tools"""

    browser_mcp_url: SecretStr | None = Field(
        None,
        description="The MCP server that runs the built-in tool `browser`, e.g."
        " `http://host:8001/mcp`, or `.../sse` for the older transport; unset: not offered.",
    )
    python_mcp_url: SecretStr | None = Field(
        None, description="The MCP server that runs the built-in tool `python`; unset: not offered."
    )
    mcp_timeout_s: float = Field(
        60.0, gt=0, le=3600, description="Seconds one call of a built-in tool may take."
    )
    mcp_max_result_bytes: int = Field(
        64 * 1024, ge=256, description="Longest result of a built-in tool; the rest is cut off."
    )
    mcp_max_calls: int = Field(
        16, ge=1, le=256, description="Most calls of built-in tools in one answer."
    )

    @field_validator("browser_mcp_url", "python_mcp_url")
    @classmethod
    def _check_http(cls, value: SecretStr | None) -> SecretStr | None:
        if value and not value.get_secret_value().startswith(("http://", "https://")):
            raise ValueError("the URL must begin with http:// or https://")
        return value
