"""Write gpt-oss's tokenizer for load tools, which would fetch one: `write_tokenizer.py FOLDER`.

FOLDER gets the files that Hugging Face libraries read, and the vocabulary as tiktoken caches it
(TIKTOKEN_CACHE_DIR=FOLDER). The ids are those of the server.
"""

from __future__ import annotations

import sys
from pathlib import Path

from transformers import PreTrainedTokenizerFast
from transformers.convert_slow_tokenizer import TikTokenConverter

from service.harmony import vocabulary

# How o200k_base cuts text before it merges (tiktoken, tiktoken_ext/openai_public.py).
_CONTRACTION = "(?i:'s|'t|'re|'ve|'m|'ll|'d)?"
_UPPER, _LOWER = r"[\p{Lu}\p{Lt}\p{Lm}\p{Lo}\p{M}]", r"[\p{Ll}\p{Lm}\p{Lo}\p{M}]"
PATTERN = "|".join(
    (
        rf"[^\r\n\p{{L}}\p{{N}}]?{_UPPER}*{_LOWER}+{_CONTRACTION}",
        rf"[^\r\n\p{{L}}\p{{N}}]?{_UPPER}+{_LOWER}*{_CONTRACTION}",
        r"\p{N}{1,3}",
        r" ?[^\s\p{L}\p{N}]+[\r\n/]*",
        r"\s*[\r\n]+",
        r"\s+(?!\S)",
        r"\s+",
    )
)
CACHED_AS = "fb374d419588a4632f3f557e76b4b70aebbca790"  # the SHA-1 of o200k_base's public address
SAMPLE = "Grüße, it's 12345 o'clock!\n\n  def f(x):\treturn x  # 東京🪿 <|end|>"


class _Converter(TikTokenConverter):  # type: ignore[misc]
    @staticmethod
    def load_tiktoken_bpe(tiktoken_url: str) -> dict[bytes, int]:
        ids = range(vocabulary.NUM_ORDINARY)
        return {vocabulary.decode_bytes(token_id): token_id for token_id in ids}


def write(folder: Path) -> None:
    """Write the files (about 20 s); raises ValueError should the ids not be the server's."""
    fast = _Converter(pattern=PATTERN).converted()
    if fast.encode(SAMPLE).ids != vocabulary.encode_text(SAMPLE):
        raise ValueError("the tokenizer does not give the ids that the server reads")
    tokenizer = PreTrainedTokenizerFast(tokenizer_object=fast)
    tokenizer.save_pretrained(folder)
    vocabulary.write_vocabulary(folder).rename(folder / CACHED_AS)


if __name__ == "__main__":
    write(Path(sys.argv[1]))
