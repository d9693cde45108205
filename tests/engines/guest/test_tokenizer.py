"""The tokenizer that grammars see has the bytes of our vocabulary."""

from __future__ import annotations

from base64 import b64encode
from pathlib import Path

import pytest
from tokenizers import Tokenizer

from engines.errors import EngineStartError
from engines.guest.tokenizer import control_name, tokenizer_folder


def test_every_byte_is_written_and_nothing_else_is_text(tmp_path: Path) -> None:
    words = [bytes([byte]) for byte in range(256)] + ["größe".encode(), b" \xff\n"]
    path = tmp_path / "vocabulary"
    path.write_bytes(b"".join(b64encode(word) + b" %d\n" % id for id, word in enumerate(words)))
    folder = tokenizer_folder(path, 260)
    tokenizer = Tokenizer.from_file(str(folder / "tokenizer.json"))
    assert tokenizer.get_vocab_size() == 260
    assert tokenizer.decode([0x41, 0x0A, 0x20, 256]) == "A\n größe"
    assert tokenizer.decode([258], skip_special_tokens=False) == control_name(258)
    assert tokenizer.decode([258, 259]) == ""
    assert [each.name for each in tmp_path.iterdir() if each.is_dir()] == [folder.name]


def test_it_is_written_once_and_a_broken_vocabulary_is_named(tmp_path: Path) -> None:
    path = tmp_path / "vocabulary"
    path.write_bytes(b"QQ== 0\n")
    folder = tokenizer_folder(path, 2)
    before = (folder / "tokenizer.json").stat()
    assert tokenizer_folder(path, 2) == folder
    assert (folder / "tokenizer.json").stat() == before
    path.write_bytes(b"QQ== 7\n")
    with pytest.raises(EngineStartError, match="is not a vocabulary of 3 tokens"):
        tokenizer_folder(path, 3)
