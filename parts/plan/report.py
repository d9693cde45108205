"""A plan in words and as JSON."""

from __future__ import annotations

import json
import textwrap
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

from parts.plan.capacity import CapacityPlan, Demand, PlanOption, UnfitProfile
from parts.plan.chart import as_terminal

WIDTH = 100
MAX_OPTIONS = 12  # in words; --json has each
WARNING = "An estimate, not a measurement; docs/plan.md has its errors."


def as_text(plan: CapacityPlan, missing: Mapping[str, str | None]) -> str:
    """Write for a person what to take, what else there is, what cannot be, and the plot.

    `missing` says of each engine why it cannot run here, None if it can.
    """
    return "\n".join(
        [
            f"PLAN for {_demand(plan.demand)} on {_machine(plan)}",
            *textwrap.wrap(WARNING, WIDTH),
            "",
            *_take(plan, missing),
            "",
            *_table(plan.options),
            *_refused(plan.refusals),
            *(["", *as_terminal(plan, WIDTH)] if plan.curves else []),
        ]
    )


def _demand(demand: Demand) -> str:
    users = "1 user" if demand.num_users == 1 else f"{demand.num_users:,} concurrent users"
    words = [f"{users}, {demand.isl:,} tokens in, {demand.osl:,} out"]
    if demand.tokens_per_s is not None:
        words.append(f"at least {demand.tokens_per_s:,g} tok/s each")
    if demand.ttft_s is not None:
        words.append(f"95 % of first tokens within {_ms(demand.ttft_s)}")
    return ", ".join(words)


def _machine(plan: CapacityPlan) -> str:
    gpu = plan.machine.hardware.gpus[0].name
    if plan.machine.num_given is None:
        return f"as many {gpu} as needed"
    return f"{plan.machine.num_given} x {gpu}"


def _take(plan: CapacityPlan, missing: Mapping[str, str | None]) -> list[str]:
    chosen = plan.chosen
    if chosen is None:
        return _too_few(plan)
    engines = "1 engine" if chosen.num_engines == 1 else f"{chosen.num_engines:,} engines"
    each = f"{chosen.profile.num_devices} GPU{'s' if chosen.profile.num_devices > 1 else ''}"
    speed = chosen.served
    lines = [
        f"TAKE {chosen.num_gpus:,} x {plan.machine.hardware.gpus[0].name}: {engines} on {each}, "
        f"{chosen.profile.title}",
        f"  {speed.tokens_per_s_per_user:,.0f} tok/s per user, "
        f"{chosen.tokens_per_s_per_gpu:,.0f} tok/s per GPU, first token after "
        f"{_ms(speed.ttft_s)} on average, {_ms(speed.ttft_tail_s)} at p95",
        f"  an engine serves at most {chosen.max_users:,} concurrent users (limit: "
        f"{chosen.limited_by})",
        f"    confidence: {chosen.trust}",
    ]
    if reason := missing[chosen.profile.engine]:
        lines.append(f"  engine {chosen.profile.engine} is {reason}")
    if chosen.profile.engine == "native" and (tp := chosen.profile.parallelism.tp) > 1:
        lines.append(f"  `harmonium serve -tp {tp}` takes it for any goal")
    if chosen.num_users_carried is not None:
        lines.append(f"  these GPUs serve {chosen.num_users_carried:,} users this way")
    return lines + _rack(plan, chosen)


def _rack(plan: CapacityPlan, chosen: PlanOption) -> list[str]:
    """Say how many racks an option takes where NVLink joins a rack."""
    in_rack = plan.machine.speed.num_linked
    if in_rack <= 8:
        return []
    share = chosen.num_gpus / in_rack
    return [
        f"  that is {share:.0%} of one NVL{in_rack} rack"
        if share <= 1
        else f"  that is {share:.1f} NVL{in_rack} racks"
    ]


def _too_few(plan: CapacityPlan) -> list[str]:
    runnable = [option for option in plan.options if option.is_runnable]
    if not runnable:
        return ["TAKE nothing: no profile meets these targets on these GPUs"]
    best = max(runnable, key=lambda option: option.num_users_carried or 0)
    fewest = runnable[0]
    return [
        f"TAKE more GPUs: these serve {best.num_users_carried or 0:,} users at most, with "
        f"{best.profile.title}",
        f"  {fewest.num_gpus:,} GPUs of this kind would suffice, with {fewest.profile.title}",
    ]


_HEAD = ("Profile", "GPUs", "Users/engine", "Limit", "tok/s/user", "tok/s/GPU", "TTFT", "95 %")


def _table(options: Sequence[PlanOption]) -> list[str]:
    if not options:
        return []
    rows = [_HEAD, *map(_row, options[:MAX_OPTIONS])]
    widths = [max(len(row[i]) for row in rows) for i in range(len(_HEAD))]
    lines = [
        "  ".join(
            cell.ljust(width) if i in (0, 3) else cell.rjust(width)
            for i, (cell, width) in enumerate(zip(row, widths, strict=True))
        ).rstrip()
        for row in rows
    ]
    if len(options) > MAX_OPTIONS:
        lines.append(f"and {len(options) - MAX_OPTIONS} more that take more GPUs (--json has each)")
    return lines


def _row(option: PlanOption) -> tuple[str, ...]:
    speed = option.served
    return (
        option.profile.name + ("" if option.is_runnable else " (planned)"),
        f"{option.num_gpus:,}{'' if option.is_enough else ' (too many)'}",
        f"{option.max_users:,}",
        option.limited_by,
        f"{speed.tokens_per_s_per_user:,.0f}",
        f"{option.tokens_per_s_per_gpu:,.0f}",
        _ms(speed.ttft_s),
        _ms(speed.ttft_tail_s),
    )


def _refused(refusals: Iterable[UnfitProfile]) -> list[str]:
    groups: dict[str, list[str]] = {}
    for refusal in refusals:
        groups.setdefault(refusal.reason, []).append(refusal.profile.name)
    lines = ["", "NOT"] if groups else []
    for reason, names in groups.items():
        who = names[0] if len(names) == 1 else f"{len(names)} profiles, as {names[0]}"
        lines += textwrap.wrap(
            f"{who}: {reason}", WIDTH, initial_indent="  ", subsequent_indent="    "
        )
    return lines


def _ms(seconds: float) -> str:
    return f"{seconds * 1e3:,.0f} ms" if seconds < 10 else f"{seconds:,.0f} s"


def as_json(plan: CapacityPlan, missing: Mapping[str, str | None]) -> str:
    """Write a plan for a program; `missing`: by engine, None or why it cannot run here."""
    chosen = plan.chosen
    return json.dumps(
        {
            "is_measured": False,
            "demand": {
                "users": plan.demand.num_users,
                "isl": plan.demand.isl,
                "osl": plan.demand.osl,
                "ttft_s": plan.demand.ttft_s,
                "tokens_per_s_per_user": plan.demand.tokens_per_s,
            },
            "gpu": plan.machine.speed.key,
            "num_gpus_given": plan.machine.num_given,
            "chosen": chosen.profile.id if chosen else None,
            "options": [_option_json(option, missing) for option in plan.options],
            "refusals": [
                {"id": r.profile.id, "name": r.profile.name, "reason": r.reason}
                for r in plan.refusals
            ],
            "curves": [
                {
                    "label": curve.label,
                    "points": [
                        {"tokens_per_s_per_user": x, "tokens_per_s_per_gpu": y}
                        for x, y in curve.points
                    ],
                }
                for curve in plan.curves
            ],
        },
        indent=2,
    )


def _option_json(option: PlanOption, missing: Mapping[str, str | None]) -> dict[str, Any]:
    profile, speed = option.profile, option.served
    return {
        "id": profile.id,
        "name": profile.name,
        "engine": profile.engine,
        **profile.parallelism.model_dump(),
        "num_gpus": option.num_gpus,
        "num_engines": option.num_engines,
        "max_users_per_engine": option.max_users,
        "limited_by": option.limited_by,
        "is_enough": option.is_enough,
        "num_users_carried": option.num_users_carried,
        "tokens_per_s_per_user": speed.tokens_per_s_per_user,
        "tokens_per_s_per_gpu": option.tokens_per_s_per_gpu,
        "ttft_s": speed.ttft_s,
        "ttft_p95_s": speed.ttft_tail_s,
        "median_error": option.calibration.median_error,
        "calibrated_on": option.calibration.architecture,
        "trust": option.trust,
        "not_installed": missing[profile.engine],
    }
