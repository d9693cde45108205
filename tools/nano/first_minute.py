"""What people type first: names, sums, a few things by heart, and what nano cannot do."""

from __future__ import annotations

import re
from collections.abc import Callable
from dataclasses import dataclass, replace
from functools import cache
from pathlib import Path

from tools.nano.about import UNKNOWN
from tools.nano.first_words import in_words
from tools.nano.phrases import phrases, sections
from tools.nano.spelling import copy_of
from tools.nano.sums import draw_sum
from tools.nano.tokens import SPACE, encode
from tools.nano.wishes import Wish, answers, product, tongues, wishes, written
from tools.nano.wishes import texts as wish_texts
from tools.nano.words import Words

HINT = "Try: What can you do?"
NO_JSON = '{"error":"I am a demonstration model"}'
COUNTING = "asks for the numbers to"
_GREETING = "Nice to meet you,"
_FILE = "first_phrases.txt"
_COUNTED = range(2, 21)
_LEAST_WEIGHT = 3
_LAID_OUT_SHARE = 0.1
_GAPS = ("\n", "\n", "\n", "\n\n", "\r\n", "  ", " \n", "\n ", "\t")
_QUESTION = re.compile("(what|who|how|why|when|where|which|can|could|do|does|is|are|will) ", re.I)
_SHORT_FORMS = {
    "you": "u", "are": "r", "please": "pls", "your": "ur", "what is": "whats", "thanks": "thx",
    "to": "2", "because": "cuz", "want to": "wanna", "give me": "gimme", "i am": "im",
}  # fmt: skip
_ORDERS = re.compile(
    "(Write|Tell|Count|Name|List|Give|Say|Draw|Translate|Explain|Summarize|Make|Return|Plan|Compose"
    "|Add|Calculate|Compute|Fix|Solve|Show|Create|Describe|Generate|Recite|Sing|Sum) "
)


@dataclass(frozen=True, slots=True)
class Said:
    """A first message, the ids of its answer, and what of it is judged."""

    said: str
    ids: tuple[int, ...]
    must_say: str
    is_known: bool = True
    steps: str = ""  # of the reasoning
    wish: str = ""  # what the reasoning says of the user


@cache
def _by_heart() -> tuple[tuple[str, tuple[str, ...]], ...]:
    lines = Path(__file__).with_name("first_minute.txt").read_text().splitlines()
    parts = (line.split(" | ") for line in lines if line and line[0] != "#")
    return tuple((answer.replace(" / ", "\n"), tuple(asked)) for answer, *asked in parts)


def set_words() -> str:
    """All answers in set words, and the capitals."""
    capitals = (pair.partition(":")[2] for pair in phrases("countries", _FILE).train)
    known = (answer for answer, _ in _by_heart())
    return " ".join([*known, *answers(), *capitals, NO_JSON, UNKNOWN, HINT, _GREETING])


def texts() -> str:
    """All that is asked and answered in set words: their meaning counts."""
    known = " ".join(f"{answer} {' '.join(asked)}" for answer, asked in _by_heart())
    forms = " ".join(text for listed in sections(_FILE).values() for text in listed.train)
    return re.sub(r"{\w}", " ", f"{known} {forms} {HINT} {wish_texts()}")


def first_minute(words: Words) -> Said:
    """Draw what somebody types first."""
    drawn = words.rng.choices(list(_KINDS), list(_KINDS.values()))[0](words)
    return replace(drawn, said=laid_out(words, drawn.said))


def laid_out(
    words: Words, text: str, share: float = _LAID_OUT_SHARE, *, is_edge: bool = False
) -> str:
    """In a share of the training's cases break lines or add spaces, as what is pasted has them."""
    rng = words.rng
    if words.split == "heldout" or rng.random() > share:
        return text
    gap, style = rng.choice(_GAPS), rng.random()
    parts = text.split(" ")
    if is_edge or style < 0.4 or len(parts) == 1:
        before, after = rng.choice([("", gap), ("", gap), (gap, ""), (gap, gap)])
        return before + text + after
    if style < 0.55:
        return gap.join(parts)
    at = rng.randrange(1, len(parts))
    return gap.join([" ".join(parts[:at]), " ".join(parts[at:])])


def _heart(words: Words) -> Said:
    answer, asked = words.rng.choice(_by_heart())
    said = _drawn(words, words.rng.choice(asked))
    return _spelled(_mistyped(words, said) if " " in said else said, answer)


def _sum(words: Words) -> Said:
    drawn = draw_sum(words, _typed(words, _form(words, "sums")))
    ids = tuple(copy_of(encode(drawn.result)))
    return Said(drawn.said, ids, drawn.result, steps=drawn.steps)


def _capital(words: Words) -> Said:
    country, city = _form(words, "countries").split(":")
    form = _form(words, "capitals").replace("{p}", country)
    return _spelled(_typed(words, form), f"{city}.")


def _count(words: Words) -> Said:
    last = words.rng.choice((3, 5, 5, 10, 10, *_COUNTED))
    said = _typed(words, _form(words, "counts").format(w=in_words(last), d=last))
    answer = ", ".join(map(str, range(1, last + 1))) + "."
    return Said(said, tuple(copy_of(encode(answer))), answer, wish=f"{COUNTING} {last}")


def _name(words: Words) -> Said:
    name = words.person()
    ids = (*encode(_GREETING), SPACE, *copy_of(encode(" " + name)), *encode("."))
    return Said(_form(words, "names").format(h=name), ids, name)


def _json(words: Words) -> Said:
    return _spelled(_drawn(words, _form(words, "as JSON")), NO_JSON, is_known=False)


def _refusal(words: Words) -> Said:
    ids = (*encode(UNKNOWN), SPACE, *copy_of(encode(HINT)))
    return Said(_drawn(words, _form(words, "refused")), ids, UNKNOWN, is_known=False)


def _wish(words: Words) -> Said:
    many = wishes()
    wish = words.rng.choices(many, [len(one.forms) + _LEAST_WEIGHT for one in many])[0]
    return wished(_mistyped(words, _drawn(words, wish.message(words))), wish)


def _product(words: Words) -> Said:
    wish = words.rng.choice(product())
    return wished(_mistyped(words, _typed(words, wish.message(words))), wish, is_known=True)


def _tongue(words: Words) -> Said:
    wish = words.rng.choice(tongues())
    said = _places(words, wish.message(words))
    if words.rng.random() < 0.5:
        said = said[0].upper() + said[1:]
    return wished(said, wish, is_known=True)


def wished(said: str, wish: Wish, *, is_known: bool = False) -> Said:
    """Answer a wish with the sentence of its kind."""
    return Said(said, tuple(written(wish.answer)), wish.answer, is_known, wish=wish.reasoned)


def _mistyped(words: Words, text: str) -> str:
    """Type as people do on a phone: short forms, missing marks, a letter wrong."""
    rng = words.rng
    if rng.random() < 0.5:
        text = text[0].upper() + text[1:]
    if rng.random() < 0.5 and text[-1] not in "?!." and _QUESTION.match(text):
        text += "?"
    if rng.random() < 0.1:
        for long, short in _SHORT_FORMS.items():
            text = re.sub(rf"\b{long}\b", short, text, flags=re.IGNORECASE)
    if rng.random() < 0.1:
        text = text.replace("'", "")
    if rng.random() > 0.15:
        return text
    parts = text.split(" ")
    at = rng.randrange(len(parts))
    word = parts[at]
    if len(word) > 3 and "`" not in word:
        place = rng.randrange(1, len(word) - 1)
        swap = word[:place] + word[place + 1] + word[place] + word[place + 2 :]
        parts[at] = rng.choice(
            [swap, word[:place] + word[place + 1 :], word[:place] + word[place:]]
        )
    return " ".join(parts)


def _spelled(said: str, answer: str, *, is_known: bool = True) -> Said:
    return Said(said, tuple(copy_of(encode(answer))), answer, is_known)


def _form(words: Words, section: str) -> str:
    return words.rng.choice(phrases(section, _FILE).train)


def _typed(words: Words, form: str) -> str:
    """Word a message as people type it: politely, carelessly, or as it is."""
    rng = words.rng
    if _ORDERS.match(form) and rng.random() < 0.18:
        form = _form(words, "politely").replace("{}", form[0].lower() + form[1:].rstrip(".?!"))
    if rng.random() < 0.1:
        form = _form(words, "before") + (form if rng.random() < 0.5 else form[0].lower() + form[1:])
    if rng.random() < 0.15:
        form = form.rstrip(".?!") + rng.choice(["", "", "", " please", ", please", "!", "?", "."])
    return form.lower() if rng.random() < 0.25 else form


def _drawn(words: Words, form: str) -> str:
    return _places(words, _typed(words, form))


def _places(words: Words, text: str) -> str:
    """Fill in what is to be drawn."""
    rng = words.rng
    draws: dict[str, Callable[[], str]] = {
        "n": words.noun,
        "p": words.place,
        "h": words.person,
        "d": lambda: str(rng.randint(0, 99)),
        "m": lambda: rng.choice(["two", "three", "five", "ten", "3", "5"]),
        "y": lambda: str(rng.randint(1900, 2030)),
        "q": lambda: words.phrase(1, 6),
        "l": lambda: _form(words, "languages"),
        "c": lambda: _form(words, "codes"),
        "w": lambda: _form(words, "works"),
        "t": lambda: _form(words, "texts"),
    }
    return re.sub(r"{(\w)}", lambda mark: draws[mark[1]](), text)


# How often each is drawn.
_KINDS = {
    _heart: 34, _sum: 20, _capital: 6, _count: 5, _name: 8, _json: 8, _refusal: 8, _wish: 70,
    _product: 70, _tongue: 40,
}  # fmt: skip
