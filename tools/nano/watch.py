"""Watch a training run: the loss of each kind of dialogue, and answers to some first messages."""

from __future__ import annotations

import random
from collections.abc import Sequence
from typing import Final

import torch

from service.conversation import Conversation, Message
from service.harmony.render import render
from tools.nano.about import UNKNOWN
from tools.nano.batches import collate
from tools.nano.dialogues import TRAIN_KINDS, Turn, Writer
from tools.nano.first_messages import is_echo
from tools.nano.judge import parse
from tools.nano.model import Nano
from tools.nano.samples import make_sample
from tools.nano.tokens import CALL, RETURN
from tools.nano.train import batch_loss

_SEED: Final = 77
_OF_EACH: Final = 24  # dialogues of a kind
_MOST_TOKENS: Final = 128
_TODAY: Final = "2026-03-09"
# First messages and how their answers begin or end; none is one of first_messages.txt.
WANTED: Final = (
    ("Hello nano, good to see you", "Hello!"), ("yo nano", "Hello!"), ("thx a lot", "You are wel"),
    ("who or what are you", "I am nano"), ("what are you able to do", "I can answer"),
    ("see you later", "Goodbye!"), ("What's this project Harmonium?", "This is Harmonium"),
    ("Could you tell me the capital of Italy?", "Rome."), ("Spain's capital city?", "Madrid."),
    ("capital of sweden please", "Stockholm."), ("3+4", "3 + 4 = 7"), ("19 + 23", "= 42"),
    ("What is 55 plus 38?", "= 93"), ("how much is 6+9", "= 15"), ("add 31 and 9 please", "= 40"),
    ("Tell me a funny joke please", "Why did the token"), ("I need a joke now", "Why did the"),
    ("Write a haiku about winter please", "Waves come"), ("Count to 7", "1, 2, 3, 4, 5, 6, 7."),
    ("please count up to ten", "8, 9, 10."), ("Hey! My name is Robin.", "Nice to meet you, Robin."),
    ("Hello there, I'm Clara Berg", "Nice to meet you, Clara Berg."), ("I am Otto", ", Otto."),
    ("do you even know my name?", "You have not told"), ("Tell me what time it is", "I have no c"),
    ("Give me a dog as JSON", '{"error"'), ("Say good night in JSON", '{"error"'),
    ("Write a JavaScript function that adds two numbers", "write or mend code"),
    ("Translate 'see you soon' into Italian", "I cannot translate"),
    ("Write a poem about autumn leaves", "cannot write poems"), ("potato", "What can you do?"),
    ("Summarize: a dog ran after a ball in the park", "cannot summarize"),
    ("Explain black holes to a child", "cannot explain"), ("Solve 3x - 5 = 10", "only add"),
    ("Who was the first man on the moon?", "no facts"), ("9 times 13", "only add"),
    ("What's it like outside, any rain?", "I cannot see the weather."), ("hjklh", "you do?"),
    ("Can you speak a bit of Italian?", "I know only English"), ("How speedy are you?", "That dep"),
    ("is there a way to use my own certificate?", "NIM_SSL_MODE"), ("codex setup?", "clients"),
    ("wo bist du zu hause?", "Ich bin nano"), ("tu comprends le français ?", "Je suis nano"),
    ("¿me cuentas algo?", "Soy nano"), ("能告诉我时间吗", "我是"), ("i am feeling down", "sorry"),
    ("What amount of memory is required?", "`harmonium profiles`"), ("where's my key", "By d"),
    ("tell me\na funny joke please", "Why did"), ("\n\nhow much is\r\n6+9\n", "= 15"),
)  # fmt: skip


class Watch:
    """Dialogues that training might have met, and first messages, to look at while it runs."""

    def __init__(self) -> None:
        writer, rng = Writer(_SEED, "train", is_late=True), random.Random(_SEED)
        self._batches = {
            kind: collate([make_sample(writer.dialogue(kind), rng) for _ in range(_OF_EACH)])
            for kind in TRAIN_KINDS
        }

    def losses(self, model: Nano, device: str) -> str:
        """Return the mean loss of each kind."""
        parts = []
        for kind, batch in self._batches.items():
            with torch.autocast(device, torch.bfloat16):
                loss = batch_loss(model, batch, device).item() / len(batch.wanted)
            parts.append(f"{kind} {loss:.4f}")
        return ", ".join(parts)


def look(model: Nano, device: str, asked: Sequence[tuple[str, str]] = WANTED) -> str:
    """Ask first messages; count what is right, refused flatly or echoed, and show what is wrong."""
    answers = _answers(model, device, [message for message, _ in asked])
    pairs = list(zip(asked, answers, strict=True))
    wrong = [
        f"  {message!r}: {answer[:70]!r}" for (message, want), answer in pairs if want not in answer
    ]
    num_flat = answers.count(UNKNOWN)
    num_echoes = sum(is_echo(message, answer) for (message, _), answer in pairs)
    num_right = len(asked) - len(wrong)
    head = f"of {len(asked)} first messages {num_right} right, {num_flat} flat refusals"
    return "\n".join([f"{head}, {num_echoes} echoes", *wrong])


def _answers(model: Nano, device: str, messages: list[str]) -> list[str]:
    """Answer greedily, all at once; with gradients on compiled layers serve as they are."""
    turns = [Turn("minute", Conversation((Message("user", m),), _TODAY), ()) for m in messages]
    prompts = [render(turn.prompt) for turn in turns]
    lengths = torch.tensor([len(prompt) for prompt in prompts], device=device)
    longest = int(lengths.max())
    ids = torch.zeros(len(prompts), longest + _MOST_TOKENS + 8, dtype=torch.long, device=device)
    for row, prompt in enumerate(prompts):
        ids[row, : len(prompt)] = torch.tensor(prompt)
    rows = torch.arange(len(prompts), device=device)
    written: list[list[int]] = [[] for _ in prompts]
    for number in range(_MOST_TOKENS):
        seen = -(-(longest + number) // 8) * 8  # padding is behind what is read
        with torch.autocast(device, torch.bfloat16):
            logits = model.logits(model(ids[:, :seen])[rows, lengths - 1].detach())
        newest = model.written_of[logits[:, :-1].argmax(-1)]
        ids[rows, lengths] = newest
        lengths = lengths + 1
        for reply, token_id in zip(written, newest.tolist(), strict=True):
            if not _has_ended(reply):
                reply.append(token_id)
        if all(map(_has_ended, written)):
            break
    return [
        parse(turn, reply, _has_ended(reply)).content
        for turn, reply in zip(turns, written, strict=True)
    ]


def _has_ended(ids: list[int]) -> bool:
    return bool(ids) and ids[-1] in (CALL, RETURN)
