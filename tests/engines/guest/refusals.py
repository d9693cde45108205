"""What no guest takes of a spec, for the tests of each guest's arguments."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import fields
from typing import Any, Final

from engines.spec import EngineSpec

Row = tuple[dict[str, Any], Any]  # fields of a spec of four GPUs, and what comes of them

REFUSED_BY_ALL: Final[list[Row]] = [
    ({"model_dir": None}, "needs model_dir"),
    ({"artefact_dir": "/store"}, "artefact_dir"),
    ({"parts": {"a_part": {}}}, "cannot be started with a_part"),
    ({"kv_dtype": "int8"}, "kv_dtype is 'int8'"),
    ({"num_devices": 2}, "need 4 GPUs, but num_devices is 2"),
    ({"pipeline_parallel": 2}, "need 8 GPUs"),
    ({"limits": {"max_num_seq": 2}}, "'max_num_seq' is unknown; did you mean 'max_num_seqs'"),
    ({"options": {"model": "other"}}, "'model' is 'other', which this server decides: '/model'"),
]


def untested_fields(rows: Iterable[Row]) -> set[str]:
    """The fields of a spec that no row has.

    The process sees to the environment; the vocabulary becomes a tokenizer, with tests of its own.
    """
    tested = {name for given, _ in rows for name in given}
    return (
        {f.name for f in fields(EngineSpec)}
        - tested
        - {
            "engine",
            "environment",
            "vocabulary_path",
        }
    )
