"""What sources, kept lists, indexes and heads can say that is not so, and what is said of it."""

from __future__ import annotations

import gzip
import itertools
import json
import os
import struct
import tempfile
from collections.abc import Iterator
from pathlib import Path
from typing import Final

from tests.profiles.checkpoints.test_gguf import HEAD, string, written
from tests.profiles.lies.liar import Answer
from tests.profiles.lies.tellers import (
    CONFIG,
    GOOD,
    MANIFEST,
    MIB,
    Lie,
    add,
    bucket,
    hub,
    kept,
    local,
    ngc,
    sized,
    web,
)

ELSEWHERE: Final = Path(tempfile.gettempdir()) / f"harmonium-lie-{os.getpid()}"
GGUF: Final = written({**HEAD, "gpt-oss.vocab_size": 201_088})
OUTSIDE: Final = "outside the model's folder"
DEEP: Final = b'{"a":' * 200_000
FLOOD: Final = Answer(chunks=lambda: itertools.repeat(b" " * MIB, 3000))
LONG: Final = Answer(chunks=FLOOD.chunks, size=3000 * MIB)
BOMB: Final = Answer(gzip.compress(bytes(64 * MIB)), headers={"Content-Encoding": "gzip"})
NAMES: Final[dict[str, tuple[object, str]]] = {
    "a name above": ("../../../evil.gguf", OUTSIDE),
    "a name above from within": ("a/../../../evil.gguf", OUTSIDE),
    "a name from the root": (f"{ELSEWHERE}/evil.gguf", OUTSIDE),
    "a name with an empty part": ("a//evil.gguf", "an empty part"),
    "a name of Windows": ("x\\..\\..\\evil.gguf", "characters that no file name needs"),
    "a name that ends early": ("evil\0.gguf", "characters that no file name needs"),
    "a name of two lines": ("evil\nharmonium: all is well.gguf", "characters that no file name"),
    "a name that clears the screen": ("\x1b[2Jevil.gguf", "characters that no file name needs"),
    "a name that turns around": ("\u202eevil.gguf", "characters that no file name needs"),
    "a long name": (f"{'x' * 300}.gguf", "too long"),
    "a deep name": (f"{'d/' * 2000}evil.gguf", "too long"),
}
SIZES: Final[dict[str, tuple[object, str]]] = {
    "a size below nothing": (-1, "a size of -1 bytes"),
    "a size beyond disks": (1 << 60, "a size of 1152921504606846976 bytes"),
    "a large text": (1 << 40, "a size of 1,099,511,627,776 bytes"),
    "a size of text": ("70", "Expected `int"),
    "a size of truth": (True, "Expected `int"),
    "a size of a half": (1.5, "Expected `int"),
    "a size in a list": ([70], "Expected `int"),
    "a size beyond numbers": (10**400, "list of files"),
}
SUMS: Final[dict[str, tuple[object, str]]] = {
    "a sum of other letters": ("z" * 64, "is no SHA-256"),
    "a sum with a path": ("../" * 21 + "x", "is no SHA-256"),
    "a short sum": ("ab", "is no SHA-256"),
    "a sum of numbers": (7, "Expected `str"),
}
OURS: Final = (
    *(".listing.json", ".verified.json", ".gguf.json", "packed.json", ".partial/x.json"),
    *("sub/.listing.json", ".packed.json", ".tensors.json"),
)
DOCUMENTS: Final[dict[str, tuple[bytes | Answer, str]]] = {
    "three gigabytes": (FLOOD, "has more than 8,388,608 bytes"),
    "what unfolds": (BOMB, r"came compressed \('gzip'\)"),
    "nested": (DEEP, "nested too deep"),
    "no JSON": (b"<html>", "cannot be read"),
    "null": (b"null", "Expected `object`"),
    "a list": (b"[]", "Expected `object`"),
    "a million objects": (b'{"x":[' + b'{"a":1},' * 900_000 + b"1]}", "more than 250,000 entries"),
}


def _names_sizes_and_documents() -> None:
    for name, (listed, said) in NAMES.items():
        hub(name, said, {"rfilename": listed, "size": 9})
        ngc(name, said, {"path": listed, "sizeInBytes": 9})
        kept(name, said, {"name": listed, "size_bytes": 9})
    for name, (size, said) in SIZES.items():
        hub(name, said, {"rfilename": "x.json", "size": size})
        ngc(name, said, {"path": "x.json", "sizeInBytes": size})
        kept(name, said, {"name": "x.json", "size_bytes": size})
    for name, (sum_, said) in SUMS.items():
        hub(name, said, {"rfilename": "x.json", "size": 9, "lfs": {"sha256": sum_}})
        kept(name, said, {"name": "x.json", "size_bytes": 9, "sha256": sum_})
    for name, (content, said) in DOCUMENTS.items():
        hub(f"its list is {name}", said, content=content)
        ngc(f"its list is {name}", said, content=content)
    for own in OURS:
        hub(f"it has {own}", "", {"rfilename": own, "size": 2})
        ngc(f"it has {own}", "", {"path": own, "sizeInBytes": 2})
        kept(f"it has {own}", "hidden files and of our own", {"name": own, "size_bytes": 2})


def _lists() -> None:
    again = {"rfilename": "config.json", "size": 3}
    hub("a file is there twice", "'config.json' twice", again)
    hub("a name is a number", "Expected `str`", {"rfilename": 7, "size": 9})
    hub("a commit has a path", r"has the revision '\.\./", sha="../../other/resolve/main")
    hub("a commit is a number", "Expected `str`", sha=7)
    many = ({"rfilename": f"{i}.json", "size": 2} for i in range(10_001))
    hub("ten thousand files", "more than 10,000", *many)
    trickle = Answer(chunks=lambda: _slowly(b" "))
    hub("its list trickles", "did not come whole within 15 s", content=trickle)
    to_itself = {"Location": "/api/models/acme/loop/revision/main?blobs=true"}
    add(
        "hub: it leads in a circle",
        Lie(
            "hf://acme/loop",
            "redirects",
            lambda url: {to_itself["Location"][1:]: Answer(status=302, headers=to_itself)},
        ),
    )
    rest = {"status": 429, "headers": {"Retry-After": "9" * 30}}
    hub("it wants to be left alone for ever", "HTTP 429", content=Answer(**rest))  # type: ignore[arg-type]
    refusal = Answer(status=403, chunks=lambda: itertools.repeat(b"x" * MIB, 3000))
    hub("its refusal has no end", "refused list of files", content=refusal)
    ngc("pages without end", "has 1,152,921,504", page={"paginationInfo": {"totalPages": 1 << 60}})
    ngc("pages of text", "Expected `int", page={"paginationInfo": {"totalPages": "many"}})
    ngc("an entry is null", "Expected `object`", None)
    ngc(
        "a sum of no base64",
        "is no SHA-256",
        {"path": "x.json", "sizeInBytes": 2, "sha256_base64": "?"},
    )
    ngc("it has no address", "Expected `array` of length >= 1", address={"urls": []})
    ngc("its address is a number", "Expected `str`", address={"urls": [7]})
    ngc("its address is nowhere", "Invalid port", address={"urls": ["http://[::1"]})
    ngc("its address is a file", "missing an 'http://'", address={"urls": ["file:///etc/passwd"]})
    kept("null", "Expected `object`", content=b"null")
    kept("nested", "nested too deep", content=DEEP)
    kept("cut", "truncated", content=b'{"files": [')
    kept("empty", "length >= 1", content=b'{"files": [], "revision": null}')
    kept("nine megabytes", "at most 8,388,608 are read", content=bytes(9 * MIB))
    kept("an entry is null", "Expected `object`", None)
    kept("files are no list", "Expected `array`", files={"config.json": 2})
    kept("a revision with a path", r"has the revision '\.\./", revision="../../other/resolve/x")
    kept("a file is there twice", "'config.json' twice", {"name": "config.json", "size_bytes": 2})
    kept("it has a field more", "", {"name": "x.md.json", "size_bytes": 0, "mode": "0777"}, new=[1])
    bucket("a name above", "list of files", [("../../../evil.gguf", 9)])
    bucket("an empty part", "list of files", [("a//evil.gguf", 9)])
    bucket("a size beyond disks", "a size of 1152921504606846976 bytes", [("x.gguf", 1 << 60)])
    bucket("a size below nothing", "list of files", [("x.gguf", -1)])
    bucket("a size of text", "list of files", [("x.gguf", "many")])
    bucket("a file is there twice", "'config.json' twice", [("config.json", 2)])
    slow = Answer(chunks=lambda: _slowly(b" "))
    add(
        "bucket: its list trickles",
        Lie(
            "s3://bucket/slow",
            "did not come whole within 15 s",
            lambda url: {"bucket?list-type=2&prefix=slow/": slow},
        ),
    )
    add(
        "bucket: its list is three gigabytes",
        Lie(
            "s3://bucket/flood",
            "has a page of more than 100.0 MB",
            lambda url: {"bucket?list-type=2&prefix=flood/": FLOOD},
        ),
    )
    bucket("it has .listing.json", "", [(".listing.json", 2)])


def _slowly(chunk: bytes) -> Iterator[bytes]:
    from time import sleep

    while True:
        sleep(0.2)
        yield chunk


def _index(weight_map: object) -> bytes:
    return json.dumps({"weight_map": weight_map}).encode()


def _indexes() -> None:
    web("an index of three gigabytes", "has more than 16,777,216 bytes", index=LONG)
    web(
        "an index that trickles",
        "within 15 s",
        index=Answer(chunks=lambda: _slowly(b" "), size=MIB),
    )
    web("an index nested", "nested too deep", index=DEEP)
    for name, content in {
        "a list": b"[]",
        "null": b"null",
        "a list for a map": _index([]),
        "null for a map": _index(None),
        "numbers": _index({"a": 1}),
        "nested names": _index({"a": {"b": "c"}}),
        "no map": b"{}",
        "a web page": b"<html>",
        "no UTF-8": b'{"weight_map": {"\xff": "x.safetensors"}}',
    }.items():
        web(f"an index of {name}", "is not an index of shards", index=content)
    web("an index of nothing", "an empty weight_map", index=_index({}))
    for name, each in {
        "above": "../evil.safetensors",
        "from the root": f"{ELSEWHERE}/evil.safetensors",
        "hidden": ".evil.safetensors",
        "of two lines": "a\nb.safetensors",
        "of ours": ".listing.json",
        "of another kind": "config.json",
        "of a folder": "sub/x.safetensors",
        "of a pickle": "pytorch_model.bin",
        "long": f"{'x' * 300}.safetensors",
    }.items():
        web(f"a shard {name}", "is not an index of shards", index=_index({"a": each}))
    many = {f"t{i}": f"{i}.safetensors" for i in range(1001)}
    web("a thousand shards", "more than 1,000 shards", index=_index(many))
    tensors = dict.fromkeys((f"t{i}" for i in range(250_000)), "model-1.safetensors")
    web("a quarter million tensors", "more than 200,000 tensors", index=_index(tensors))


def _files_that_differ() -> None:
    """What is sent is not what was listed."""
    text = "tokenizer.json"  # which nothing here reads
    longer, shorter = Answer(bytes(500), size=100), Answer(bytes(100), size=500)
    web("a file shrank", "lists 500 bytes, and sends a file of 100", shard=shorter)
    web("a file grew", "lists 100 bytes, and sends a file of 500", shard=longer)
    whole = Answer(bytes(9 * MIB), has_ranges=False, cut_after=5 * MIB)
    web("it breaks off, and sends whole files only", "whole files only", text=whole)
    sizes = {**sized(GOOD), text: 4 * MIB}
    for name, answer, said in (
        ("a file has no end", Answer(chunks=FLOOD.chunks), "more bytes than it lists"),
        ("a file ends early", Answer(chunks=lambda: [b"x" * MIB]), "too early|whole files only"),
        ("a file unfolds", BOMB, "came compressed"),
        ("a file shrank", Answer(bytes(100)), "lists 4,194,304 bytes, and sends a file of 100"),
        (
            "it breaks off, and sends whole files only",
            Answer(bytes(4 * MIB), has_ranges=False, cut_after=2 * MIB),
            "whole files only",
        ),
        (
            "it breaks off, and goes on elsewhere",
            Answer(bytes(4 * MIB), cut_after=2 * MIB, headers={"Content-Range": "bytes 7-9/10"}),
            "another range than was asked for",
        ),
    ):
        files: dict[str, bytes | Answer] = {**GOOD, text: answer}
        hub(name, said, files=files, sizes=sizes)
        ngc(name, said, files=files, sizes=sizes)


def _head(*pairs: bytes, count: int | None = None) -> bytes:
    """A GGUF head of these keys with their values, that says it has `count`."""
    return (
        b"GGUF"
        + struct.pack("<IQQ", 3, 0, len(pairs) if count is None else count)
        + b"".join(pairs)
    )


def _array(kind: int, length: int) -> bytes:
    return string("x") + struct.pack("<IIQ", 9, kind, length)


def _text(key: str, length: int) -> bytes:
    return string(key) + struct.pack("<IQ", 8, length) + b"x" * length


def _heads() -> None:
    heads: dict[str, tuple[bytes, str]] = {
        "2^60 keys": (_head(count=1 << 60), "keys, 10,000 at most"),
        "2^60 strings": (_head(_array(8, 1 << 60)), "more than 2,000,000 strings"),
        "2^60 numbers": (_head(_array(10, 1 << 60)), "more than 33,554,432 bytes"),
        "2^64 - 1 letters": (_head(string("x") + struct.pack("<IQ", 8, (1 << 64) - 1)), "a string"),
        "a hundred long texts": (
            _head(*(_text(f"k{i}", 1 << 20) for i in range(100))),
            "more than 33,554,432 bytes",
        ),
        "a long key": (_head(struct.pack("<Q", 1 << 40)), "a string of it has"),
        "arrays of arrays": (_head(_array(9, 1 << 60)), "an array has the type 9"),
        "an unknown type": (_head(string("x") + struct.pack("<I", 99)), "unknown type 99"),
        "version 9": (b"GGUF" + struct.pack("<I", 9), "its version is 9"),
        "nothing": (b"", "does not begin with GGUF"),
        "layers of text": (written({**HEAD, "gpt-oss.block_count": "many"}), "Expected `int"),
        "layers of halves": (written({**HEAD, "gpt-oss.block_count": 1.5}), "Expected `int"),
        "a type of text": (written({**HEAD, "general.file_type": "x"}), "Expected `int"),
        "a long architecture": (written({**HEAD, "general.architecture": "x" * 9999}), "<= 100"),
    }
    for name, (content, said) in heads.items():
        local(f"a head of {name}", said, m__gguf=(content, 1 << 40))
    for name in ("2^60 keys", "2^60 strings", "layers of text", "nothing"):
        content, said = heads[name]
        files = {"m.gguf": content + bytes(100)}
        hub(f"a head of {name}", said if name != "nothing" else "does not begin", files=files)
    parts = {"m-00001-of-99999.gguf": GGUF}
    hub("a model of 99,999 files", "is one of 99,999 files", files=parts)
    hub("a model of 999,999,999 files", "", files={"m-00001-of-999999999.gguf": GGUF})
    hub("a model of no files", "", files={"m-00001-of-00000.gguf": GGUF})
    hub("digits of another script", "", files={"m-0000¹-of-0000².gguf": GGUF})
    web("a model of 99,999 files", "99,999 files", "?file=m-00001-of-99999.gguf")
    for name, content in {
        "null": b"null",
        "a list": b"[]",
        "nested": DEEP,
        "no size": b"{}",
        "a size of text": b'{"gguf_bytes": "9"}',
        "layers in a list": b'{"gguf_bytes": 9, "num_hidden_layers": [9]}',
        "a type in a list": b'{"gguf_bytes": 9, "gguf_type": [9]}',
        "a size beyond numbers": b'{"gguf_bytes": 1' + b"0" * 400 + b"}",
    }.items():
        said = "nested too deep" if name == "nested" else "does not describe a GGUF model"
        add(f"kept: a head of {name}", Lie("{folder}", said, kept={".gguf.json": content}))


def _configs() -> None:
    """What config.json and shards say."""
    other = {**CONFIG, "hidden_size": 1440}  # a shape of its own
    for name, config, said in (
        ("config: a size beyond numbers", {**CONFIG, "hidden_size": 10**400}, "hidden_size"),
        (
            "config: layers without end",
            {**other, "num_hidden_layers": 1 << 40},
            "num_hidden_layers",
        ),
        ("config: a list for a size", {**CONFIG, "hidden_size": [1]}, "hidden_size"),
        (
            "config: a long architecture",
            {**other, "model_type": "x" * 100_000},
            "model_type is 'xxx",
        ),
        ("config: two lines of architecture", {**other, "model_type": ["a\nb"]}, "model_type is"),
        ("config: layer types are a number", {**other, "layer_types": 5}, ""),
        ("config: layer types are nested", {**other, "layer_types": [[["x"]]]}, ""),
        ("config: a format of numbers", {**other, "quantization_config": 7}, ""),
    ):
        content = json.dumps(config).encode()
        hub(name, said, files={**GOOD, "config.json": content}, arguments=MANIFEST)
    hub(
        "a nested config",
        "nested too deep",
        files={**GOOD, "config.json": b"[" * 200_000},
        arguments=MANIFEST,
    )
    large = b"[" + b"[]," * MIB + b"1]"
    hub(
        "a large config",
        "at most 1,048,576",
        files={**GOOD, "config.json": large},
        arguments=MANIFEST,
    )
    shards = {
        "a long header": (b"\xff" * 64, "more than 16,777,216 bytes"),
        "offsets backwards": (_shard({"dtype": "U8", "shape": [4], "data_offsets": [4, 0]}), "-4"),
        "a foreign type": (_shard({"dtype": "X", "shape": [4], "data_offsets": [0, 4]}), "'X'"),
        "a nested header": (struct.pack("<Q", len(DEEP)) + DEEP, "nested too deep"),
    }
    for name, (content, said) in shards.items():
        told: dict[str, bytes | Answer] = {**GOOD, "model-1.safetensors": content}
        hub(f"a shard with {name}", said, files=told)
        ngc(f"a shard with {name}", said, files=told)


def _shard(entry: object) -> bytes:
    text = json.dumps({"a": entry}).encode()
    return struct.pack("<Q", len(text)) + text + bytes(4)


_names_sizes_and_documents()
_lists()
_indexes()
_files_that_differ()
_heads()
_configs()
