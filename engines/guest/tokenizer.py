"""A tokenizer for a guest's grammars, written from our vocabulary: it takes them only with one.

So grammars see the same bytes under every engine, and no file of the checkpoint is trusted for
it. It encodes nothing: prompts are token ids.
"""

from __future__ import annotations

import json
import secrets
import shutil
from pathlib import Path
from typing import Any, Final

from engines.native.grammar.vocabulary import read_vocabulary

_VERSION: Final = 1  # of what is written


def tokenizer_folder(vocabulary_path: Path, vocab_size: int) -> Path:
    """Write the tokenizer's folder beside the vocabulary, unless it is there, and return it.

    It appears whole: several engines of a machine may start together. Raises EngineStartError for
    a vocabulary that cannot be read, OSError where nothing can be written.
    """
    folder = vocabulary_path.with_name(f"{vocabulary_path.name}.tokenizer-{_VERSION}-{vocab_size}")
    if not folder.exists():
        vocabulary = read_vocabulary(vocabulary_path, vocab_size)
        new = vocabulary_path.with_name(f".tokenizer-{secrets.token_hex(4)}")
        new.mkdir()
        try:
            _write(new, vocabulary)
            new.rename(folder)
        except OSError:
            shutil.rmtree(new, ignore_errors=True)
            if not folder.exists():
                raise
    return folder


def _write(folder: Path, vocabulary: list[bytes]) -> None:
    letters = _letters()
    spelt = {
        "".join(letters[byte] for byte in word): id for id, word in enumerate(vocabulary) if word
    }
    control = [id for id, word in enumerate(vocabulary) if not word]
    added = [
        {
            "id": id,
            "content": control_name(id),
            "special": True,
            **dict.fromkeys(("single_word", "lstrip", "rstrip", "normalized"), False),
        }
        for id in control
    ]
    bytes_: dict[str, Any] = {"type": "ByteLevel", "add_prefix_space": False, "use_regex": False}
    tokenizer = {
        "version": "1.0",
        "added_tokens": added,
        "pre_tokenizer": {**bytes_, "trim_offsets": True},
        "decoder": {**bytes_, "trim_offsets": True},
        "model": {"type": "BPE", "vocab": spelt, "merges": []},
    }
    kind = {
        "tokenizer_class": "PreTrainedTokenizerFast",
        "eos_token": control_name(len(vocabulary) - 1),
    }
    files = {
        "tokenizer.json": tokenizer,
        "tokenizer_config.json": kind,
        "config.json": {"model_type": "gpt_oss"},  # else vLLM logs errors
    }
    for name, content in files.items():
        (folder / name).write_text(json.dumps(content, ensure_ascii=False), "utf-8")


def control_name(token_id: int) -> str:
    """Return the text that a control token needs: one that no vocabulary spells."""
    return f"<|control_{token_id}|>"


def _letters() -> list[str]:
    """Return the letter that represents each byte: a visible one.

    GPT-2's vocabulary has them so (bytes_to_unicode of its encoder.py).
    """
    shown = [*range(0x21, 0x7F), *range(0xA1, 0xAD), *range(0xAE, 0x100)]
    hidden = [byte for byte in range(256) if byte not in shown]
    return [chr(byte) if byte in shown else chr(256 + hidden.index(byte)) for byte in range(256)]
