"""Look at a training state without generating: `python -m tools.nano.probe`.

With the wanted reply as input, a reply whose every token is the likeliest is what greedy
generation would write, and the product of its probabilities is how often sampling at
temperature 1 would write it: lower bounds of what tools/nano/report.py measures.
"""

from __future__ import annotations

import argparse
import math
from collections import defaultdict
from dataclasses import dataclass
from pathlib import Path

import torch

from service.harmony.render import render
from tools.nano.dialogues import Turn, Writer
from tools.nano.model import Nano
from tools.nano.pack import load_state
from tools.nano.tokens import decode
from tools.nano.words import Split


@dataclass(frozen=True, slots=True)
class Look:
    """How one wanted reply fares."""

    turn: Turn
    is_greedy: bool  # every token is the likeliest
    probability: float
    wanted: str = ""  # of the first wrong token
    given: str = ""


@torch.no_grad()
def look(model: Nano, turn: Turn) -> Look:
    """Score the wanted reply of one turn."""
    prompt, reply = render(turn.prompt), list(turn.reply)
    hidden = model(torch.tensor([[*prompt, *reply]]))[0, len(prompt) - 1 : -1]
    logits = model.logits(hidden)
    logits[:, -1] += math.log(model.shape.vocab_size - len(model.makeup.written))
    scores = logits.log_softmax(-1)
    targets = model.target_of[torch.tensor(reply)]
    best = scores.argmax(-1)
    wrong = (best != targets).nonzero().flatten().tolist()
    probability = math.exp(scores[torch.arange(len(reply)), targets].sum().item())
    if not wrong:
        return Look(turn, True, probability)
    at = wrong[0]
    given = [int(i) for i in model.makeup.written[best[at] : best[at] + 1]]  # none: an unwritten id
    before = decode(reply[max(0, at - 6) : at])
    return Look(turn, False, probability, before + "▸" + decode([reply[at]]), decode(given))


def main() -> None:
    """Read the command line and print a table, with some of the failures."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--state", type=Path, default=Path("build/nano/state.pt"))
    parser.add_argument("--split", choices=["train", "heldout"], default="heldout")
    parser.add_argument("--dialogues", type=int, default=150)
    parser.add_argument("--failures", type=int, default=12)
    arguments = parser.parse_args()
    model, state = load_state(arguments.state)
    split: Split = arguments.split
    writer = Writer(7, split)
    looks = [
        look(model.eval(), turn) for _ in range(arguments.dialogues) for turn in writer.dialogue()
    ]
    kinds: dict[str, list[Look]] = defaultdict(list)
    for one in looks:
        kinds[one.turn.kind].append(one)
    print(f"step {state['step']}, loss {state['loss']:.4f}")
    for kind, group in sorted(kinds.items()):
        greedy = sum(one.is_greedy for one in group) / len(group)
        sampled = sum(one.probability for one in group) / len(group)
        print(f"{kind:10} n {len(group):4}  greedy {greedy:.3f}  sampled {sampled:.3f}")
    for one in [one for one in looks if not one.is_greedy][: arguments.failures]:
        said = one.turn.prompt.messages[-1].content
        print(f"{one.turn.kind}: {said!r} {one.wanted!r} not {one.given!r}")


if __name__ == "__main__":
    main()
