"""Why profiles cannot run, in few words: the remedy first, equal reasons together."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterable, Iterator
from dataclasses import replace
from itertools import combinations
from typing import Any

from profiles.hardware.machine import Hardware
from profiles.selection.memory import memory_need
from profiles.selection.ranking import rank
from profiles.selection.rounding import rounding_remedy
from profiles.selection.verdicts import Constraints, Fit, Rejection, Selection

MAX_REASONS = 6  # so that a refusal fits on a screen
_HOPE = (Fit.LOW_MEMORY, Fit.NOT_INSTALLED, Fit.INCOMPATIBLE)  # what is nearest to running first


def by_cause(rejections: Iterable[Rejection]) -> dict[str, list[Rejection]]:
    """Put rejections with one cause together; each cause in the place of its first."""
    groups: dict[str, list[Rejection]] = {}
    for rejection in rejections:
        groups.setdefault(rejection.cause or rejection.reason, []).append(rejection)
    return groups


def counted(rejections: Iterable[Rejection]) -> str:
    """Return '34 profiles of gpt-oss-120b, 1 profile of nano'."""
    models = Counter(rejection.profile.model.name for rejection in rejections)
    return ", ".join(
        f"{count} {'profile' if count == 1 else 'profiles'} of {model}"
        for model, count in models.items()
    )


def refusal(selection: Selection) -> str:
    """Say what to do when nothing can run, and then why nothing can."""
    asked = _by_hope(selection)
    others = [r for r in selection.rejections if r.fit is Fit.NOT_ASKED]
    lines = [selection.remedy, selection.reason]
    groups = by_cause(asked)
    for cause, rejections in list(groups.items())[:MAX_REASONS]:
        lines.append(f"  {counted(rejections)}: {cause}")
    if len(groups) > MAX_REASONS:
        lines.append(f"  and {len(groups) - MAX_REASONS} more reasons")
    if others:
        lines.append(f"  excluded by your request: {counted(others)}")
    lines.append("`harmonium profiles` lists them all.")
    return "\n".join(lines)


def _by_hope(selection: Selection) -> list[Rejection]:
    """Rejections of what was asked for, nearest to running first."""
    return sorted(
        (r for r in selection.rejections if r.fit in _HOPE),
        key=lambda r: (_HOPE.index(r.fit), r.profile.status == "planned", bool(r.cause)),
    )


def remedy_for(
    selection: Selection,
    ask: Callable[[Constraints], Selection],
    hardware: Hardware,
    constraints: Constraints,
) -> str:
    """Say what to do when nothing can run.

    `ask` gives the selection on the same machine with other constraints.
    """
    asked = _by_hope(selection)
    rounding = rounding_remedy(selection, ask, hardware, constraints)
    if shorter := shorter_context(asked):
        return f"Set {shorter}." + (f" Or: {rounding}" if rounding else "")
    if rounding:
        return rounding
    otherwise = _otherwise(ask, constraints)
    if missing := _missing(selection, ask, constraints):
        wishes, rejection = missing
        model = rejection.profile.model.name
        without = f"Without {wishes}, " if wishes else ""
        other = f" Or {otherwise}" if otherwise else _demonstration(selection)
        return f"{without}{model} fits {hardware.summary}, but {rejection.missing_engine}.{other}"
    if otherwise:
        return otherwise[0].upper() + otherwise[1:]
    on_cpu = min(
        (r for r in asked if r.profile.gpu is None),
        key=lambda r: memory_need(r.profile).fixed_bytes,
        default=None,
    )
    if on_cpu is not None:
        model = on_cpu.profile.model.name
        return f"Free memory, or add some: {model} {on_cpu.reason}.{_demonstration(selection)}"
    return f"Use a machine that one of the profiles supports.{_demonstration(selection)}"


def _demonstration(selection: Selection) -> str:
    """Say how to serve the demonstration model if it is held back because of a GPU."""
    names = {r.profile.model.name for r in selection.rejections if r.is_kept_back}
    return "".join(f" Only to try the server: NIM_MODEL_NAME={name}." for name in sorted(names))


def _otherwise(ask: Callable[[Constraints], Selection], constraints: Constraints) -> str:
    """The constraints to drop so that something can run; empty if nothing can."""
    for wishes, fewer in _with_less(constraints):
        selection = ask(fewer)
        if selection.compatible:
            model, engines = selection.chosen.profile.model.name, ""
            if constraints.num_replicas != fewer.num_replicas:
                engines = f" with {num_engines(selection.chosen.placement.num_replicas)}"
            return f"unset {wishes} to serve {model}{engines}, which can run here."
    return ""


def num_engines(number: int) -> str:
    return "one engine" if number == 1 else f"{number} engines"


def _missing(
    selection: Selection, ask: Callable[[Constraints], Selection], constraints: Constraints
) -> tuple[str, Rejection] | None:
    """What would be chosen if its engine were there, and what to drop for it; never the model."""
    if rejection := _best_not_installed(selection, constraints):
        return "", rejection
    if constraints.model is None:
        return None
    for wishes, fewer in _with_less(constraints):
        if fewer.model is None:
            continue
        relaxed = ask(fewer)
        if relaxed.compatible:  # then this is the remedy, and it needs nothing installed
            return None
        if rejection := _best_not_installed(relaxed, fewer):
            return wishes, rejection
    return None


def _with_less(constraints: Constraints) -> Iterator[tuple[str, Constraints]]:
    """Yield what may be dropped, and the rest: the fewest first, and the model last."""
    given = [wish for wish in _wishes(constraints) if wish[1]]
    sets = [taken for size in range(len(given)) for taken in combinations(given, size + 1)]
    for taken in sorted(sets, key=lambda taken: any(field == "model" for field, _, _ in taken)):
        dropped: dict[str, Any] = {field: {} if field == "tags" else None for field, _, _ in taken}
        wishes = " and ".join(f"{name} ({value})" for _, value, name in taken)
        yield wishes, replace(constraints, **dropped)


def _best_not_installed(selection: Selection, constraints: Constraints) -> Rejection | None:
    """The profile that would be chosen if its engine were there."""
    rejections = _by_hope(selection)
    fitting = [(rank(r.candidate, constraints), r) for r in rejections if r.candidate is not None]
    return min(fitting, key=lambda pair: pair[0])[1] if fitting else None


def shorter_context(rejections: Iterable[Rejection]) -> str:
    """The setting with which a profile would fit, if the context's length is all that is amiss."""
    fitting = [r for r in rejections if r.max_model_len is not None and not r.missing_engine]
    if not fitting:
        return ""
    best = max(fitting, key=lambda r: r.max_model_len or 0)
    length = best.max_model_len
    return f"NIM_MAX_MODEL_LEN={length} (--max-model-len {length}): {best.profile.title} then fits"


def _wishes(constraints: Constraints) -> list[tuple[str, object, str]]:
    """Return the field, the value and the setting of each wish that excludes profiles."""
    tags = ",".join(f"{tag}={value}" for tag, value in constraints.tags.items())
    return [
        ("tags", tags, "NIM_TAGS_SELECTOR"),
        ("max_model_len", constraints.max_model_len, "NIM_MAX_MODEL_LEN"),
        ("num_replicas", constraints.num_replicas, "NIM_REPLICAS"),
        ("memory_fraction", constraints.memory_fraction, "NIM_KVCACHE_PERCENT"),
        ("quantize", constraints.quantize, "NIM_QUANTIZE"),
        ("profile", constraints.profile, "NIM_MODEL_PROFILE"),
        ("engine", constraints.engine, "--engine"),
        ("model", constraints.model, "NIM_MODEL_NAME or NIM_MODEL_PATH"),
    ]
