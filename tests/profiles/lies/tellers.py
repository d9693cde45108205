"""Who tells a lie: the hub, NGC, a web mirror, a bucket, a list that was kept, or a folder.

Each function adds one to LIES: what is listed or sent beside, or in the place of, a good model.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field
from typing import Any, Final

from tests.profiles.lies.liar import Answer
from tests.profiles.store.test_store import shard

COMMIT: Final = "0123456789abcdef0123456789abcdef01234567"
SHAPE: Final = {  # of gpt-oss-20b
    "num_hidden_layers": 24,
    "hidden_size": 2880,
    "intermediate_size": 2880,
    "num_local_experts": 32,
    "num_experts_per_tok": 4,
    "num_attention_heads": 64,
    "num_key_value_heads": 8,
    "head_dim": 64,
    "vocab_size": 201_088,
    "sliding_window": 128,
    "max_position_embeddings": 131_072,
}
CONFIG: Final = {"model_type": "gpt_oss", "quantization_config": {"quant_method": "mxfp4"}, **SHAPE}
INDEX: Final = "model.safetensors.index.json"
GOOD: Final[Mapping[str, bytes]] = {
    "config.json": json.dumps(CONFIG).encode(),
    INDEX: b'{"weight_map": {"a": "model-1.safetensors"}}',
    "model-1.safetensors": shard("a"),
}
MIB: Final = 1 << 20
Answers = Mapping[str, Answer]
MANIFEST: Final = ("--manifest-file", "manifest.json")


@dataclass(frozen=True)
class Lie:
    """One lie: where a model is said to be, and all that is told of it."""

    uri: str  # or a path, both with {url} and {folder}
    said: str  # what the error says; "" where the lie is left alone and the model is fetched
    answers: Callable[[str], Answers] = lambda url: {}  # by path, for the server's address
    kept: Mapping[str, bytes | tuple[bytes, int]] = field(default_factory=dict)  # with a size
    arguments: tuple[str, ...] = ()


LIES: Final[dict[str, Lie]] = {}


def add(name: str, lie: Lie) -> None:
    assert name not in LIES
    LIES[name] = lie


def _key() -> str:
    return f"m{len(LIES)}"


def sized(files: Mapping[str, bytes | Answer]) -> dict[str, int]:
    return {name: len(each) for name, each in files.items() if isinstance(each, bytes)}


def _files(place: str, files: Mapping[str, bytes | Answer]) -> dict[str, Answer]:
    return {
        f"{place}/{name}": each if isinstance(each, Answer) else Answer(each)
        for name, each in files.items()
    }


def hub(
    name: str,
    said: str,
    *listed: Mapping[str, Any],
    content: bytes | Answer | None = None,
    files: Mapping[str, bytes | Answer] = GOOD,
    sizes: Mapping[str, Any] | None = None,
    sha: object = COMMIT,
    query: str = "",
    arguments: tuple[str, ...] = (),
) -> None:
    """`listed`: entries beside those of `files`; `content`: sent in the place of a list."""
    key = _key()
    if content is None:
        told_sizes = sizes or sized(files)
        entries = [{"rfilename": name, "size": size} for name, size in told_sizes.items()]
        content = json.dumps({"id": key, "sha": sha, "siblings": [*entries, *listed]}).encode()
    told = content if isinstance(content, Answer) else Answer(content)
    answers = {
        f"api/models/acme/{key}/revision/main?blobs=true": told,
        **_files(f"acme/{key}/resolve/{COMMIT}", files),
    }
    add(
        f"hub: {name}",
        Lie(f"hf://acme/{key}{query}", said, lambda url: answers, arguments=arguments),
    )


def ngc(
    name: str,
    said: str,
    *listed: object,
    content: bytes | Answer | None = None,
    address: object = None,
    page: Mapping[str, Any] | None = None,
    files: Mapping[str, bytes | Answer] = GOOD,
    sizes: Mapping[str, int] | None = None,
) -> None:
    """`address`: sent in the place of where a file is."""
    key = _key()
    base = f"v2/org/acme/models/{key}"

    def answers(url: str) -> Answers:
        told = sizes or sized(files)
        entries = [{"path": name, "sizeInBytes": size} for name, size in told.items()]
        first = json.dumps({"modelFiles": [*entries, *listed], **(page or {})}).encode()
        page_of_list = content if isinstance(content, Answer) else Answer(content or first)
        where = {
            f"{base}/1/files?path={name}": Answer(
                json.dumps(address or {"urls": [f"{url}/store/{key}/{name}"]}).encode()
            )
            for name in files
        }
        lists = f"{base}/versions/1/files?page-size=1000&page-number=0"
        return {lists: page_of_list, **where, **_files(f"store/{key}", files)}

    add(f"ngc: {name}", Lie(f"ngc://acme/{key}:1", said, answers))


def web(name: str, said: str, query: str = "", **files: bytes | Answer) -> None:
    """`files`: in the place of good ones; `index` is the index."""
    key = _key()
    names = {"index": INDEX, "config": "config.json", "shard": "model-1.safetensors"}
    names["text"] = "tokenizer.json"
    told = {**GOOD, **{names.get(name, name): each for name, each in files.items()}}
    answers = _files(key, told)
    add(f"web: {name}", Lie(f"{{url}}/{key}{query}", said, lambda url: answers))


def bucket(name: str, said: str, entries: Iterable[tuple[str, object]] = ()) -> None:
    key = _key()
    told = "".join(
        f"<Contents><Key>{key}/{name}</Key><Size>{size}</Size><ETag>e</ETag>"
        "<LastModified>2026-03-02T10:00:00.000Z</LastModified></Contents>"
        for name, size in [*sized(GOOD).items(), *entries]
    )
    listing = f"<ListBucketResult><IsTruncated>false</IsTruncated>{told}</ListBucketResult>"
    answers = {
        f"bucket?list-type=2&prefix={key}/": Answer(listing.encode()),
        **_files(f"bucket/{key}", GOOD),
    }
    add(f"bucket: {name}", Lie(f"s3://bucket/{key}", said, lambda url: answers))


def kept(name: str, said: str, *listed: object, content: bytes | None = None, **more: Any) -> None:
    """A list that was kept at an earlier start, of a repository that is as it was."""
    key = _key()
    entries = [{"name": name, "size_bytes": size} for name, size in sized(GOOD).items()]
    told = {"source": "x", "revision": COMMIT, "files": [*entries, *listed], **more}
    answers = _files(f"acme/{key}/resolve/{COMMIT}", GOOD)
    add(
        f"kept: {name}",
        Lie(
            f"hf://acme/{key}",
            said,
            lambda url: answers,
            {".listing.json": json.dumps(told).encode() if content is None else content},
        ),
    )


def local(name: str, said: str, **contents: bytes | tuple[bytes, int]) -> None:
    """Files of a folder that NIM_MODEL_PATH names; with a number they are sparse, of that size."""
    files = {name.replace("__", "."): each for name, each in contents.items()}
    add(f"folder: {name}", Lie("{folder}", said, kept=files, arguments=MANIFEST))
