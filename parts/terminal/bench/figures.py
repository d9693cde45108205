"""Figures of a load: times to the first token, gaps, goodput, what was cached and rejected."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass
from itertools import pairwise
from statistics import median
from typing import Any, Final

from parts.terminal.bench.exchange import TimedAnswer, parse
from parts.terminal.bench.traffic import Traffic

_FEW_TOKENS: Final = 16  # a mean over fewer is mostly chance


@dataclass(frozen=True, slots=True)
class Objective:
    """The SLO that an answer has to meet to count as goodput."""

    ttft_s: float = 0.5
    s_per_token: float = 0.025

    def is_met(self, answer: TimedAnswer) -> bool:
        if not answer.is_whole or answer.ttft_s is None or answer.ttft_s > self.ttft_s:
            return False
        return answer.s_per_token is None or answer.s_per_token <= self.s_per_token

    def holds(self, group: dict[str, Any]) -> bool:
        """Whether 99 % of a group's answers meet each bound, and none was refused or broken."""
        if group["rejected"] or group["failed"] or not group["whole"]:
            return False
        token_ms = group["ms_per_token"].get("p99", 0.0)
        is_soon = group["ttft_ms"]["p99"] <= self.ttft_s * 1e3
        return bool(is_soon and token_ms <= self.s_per_token * 1e3)


def quantile(values: Sequence[float], share: float) -> float:
    """The value with this share of the others below it (nearest rank)."""
    ordered = sorted(values)
    return ordered[min(len(ordered) - 1, int(share * len(ordered)))]


def figures(traffic: Traffic, objective: Objective) -> dict[str, Any]:
    """All figures of a load as JSON: its seconds, and each group of requests."""
    seconds = traffic.ended_at - traffic.began_at
    groups = {
        name: group_figures(
            [parse(each) for each in of],
            traffic.busy_s.get(name, seconds),
            objective,
            traffic.windows.get(name),
        )
        for name, of in traffic.groups.items()
    }
    for name, reference in traffic.references.items():
        groups[name]["share"] = _share(groups[name], groups[reference])
    return {"seconds": round(seconds, 3), "groups": groups}


def _share(group: dict[str, Any], reference: dict[str, Any]) -> dict[str, float]:
    """The group's medians over the reference's."""
    return {
        name: round(group[name]["p50"] / reference[name]["p50"], 3)
        for name in ("ttft_ms", "ms_per_token")
        if group[name] and reference[name]
    }


def median_of(runs: Sequence[Any]) -> Any:
    """The median of each number of runs of one load; of what is no number the first."""
    first = runs[0]
    if isinstance(first, dict):
        return {
            name: median_of([run[name] for run in runs if isinstance(run, dict) and name in run])
            for name in first
        }
    if isinstance(first, int | float) and not isinstance(first, bool):
        return median([run for run in runs if isinstance(run, int | float)])
    return first


def group_figures(
    answers: Sequence[TimedAnswer],
    seconds: float,
    objective: Objective,
    windows: Sequence[tuple[float, float]] | None = None,
) -> dict[str, Any]:
    """Figures of requests of one kind; gaps only of `windows`, where there are some."""
    begun = [a for a in answers if a.is_whole or a.is_cancelled]
    whole = [a for a in answers if a.is_whole]
    rejected = [a for a in answers if a.is_rejected]
    failed = [a for a in answers if a.is_failed]
    num_prompt = sum(a.num_prompt_tokens for a in whole)
    cached = [a.num_cached_tokens for a in whole if a.num_cached_tokens is not None]
    kinds = [(kind, a.error) for a in answers if (kind := a.error_kind) is not None]
    num_good = sum(map(objective.is_met, answers))
    found: dict[str, Any] = {
        "requests": len(answers),
        "whole": len(whole),
        "rejected": len(rejected),
        "failed": len(failed),
        "prompt_tokens": num_prompt,
        "cached_share": round(sum(cached) / max(num_prompt, 1), 4) if cached else None,
        "generated_tokens": sum(a.num_tokens for a in begun),
        "tokens_per_s": round(sum(a.num_tokens for a in begun) / seconds, 1),
        "good": num_good,
        "goodput_per_s": round(num_good / seconds, 2),
        "ttft_ms": _spread([a.ttft_s for a in begun if a.ttft_s is not None]),
        "ms_per_token": _spread([s for a in whole if (s := _steady_s(a)) is not None]),
        "gap_ms": _spread([gap for a in begun for gap in _gaps(a, windows)]),
    }
    if rejected:
        retries = [a.retry_after_s for a in rejected if a.retry_after_s is not None]
        found["retry_after_s"] = {"given": len(retries), "max": max(retries, default=None)}
    if kinds:
        found["errors"] = dict(Counter(kind for kind, _ in kinds))
        found["messages"] = {kind: message for kind, message in reversed(kinds) if message}
    found["has_usage"] = all(a.has_usage for a in whole)
    return found


def _steady_s(answer: TimedAnswer) -> float | None:
    return answer.s_per_token if answer.num_tokens >= _FEW_TOKENS else None


def _gaps(answer: TimedAnswer, windows: Sequence[tuple[float, float]] | None) -> list[float]:
    """Seconds between events with tokens; those that overlap a window, where there are some."""
    pairs = pairwise(answer.token_times)
    if windows is None:
        return [after - before for before, after in pairs]
    return [
        after - before
        for before, after in pairs
        if any(before < end and after > start for start, end in windows)
    ]


def _spread(seconds: Sequence[float]) -> dict[str, float]:
    """Milliseconds at the quantiles; empty without values."""
    if not seconds:
        return {}
    shares = {"p50": 0.5, "p90": 0.9, "p99": 0.99, "max": 1.0}
    return {name: round(quantile(seconds, share) * 1e3, 3) for name, share in shares.items()}
