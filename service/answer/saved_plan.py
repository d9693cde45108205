"""A plan as the input of a job: any worker can continue its response, also of another host."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import MISSING, fields
from typing import Any, Final, get_type_hints

import msgspec

from auth.base import Principal
from engines.grammar.tree import Grammar, from_plain, to_plain
from service.answer.plan import Hosted, Plan
from service.chat_format import ChatFormat
from service.request import Deadline, RequestContext, Trace
from service.tools import Toolbox

# The others follow from the runtime, or have a form of their own here.
_OWN_FORM: Final = ("context", "format", "grammar", "hosted")
_HINTS: Final = get_type_hints(Plan)


def _member(name: str, default: Any) -> tuple[Any, ...]:
    return (name, _HINTS[name]) if default is MISSING else (name, _HINTS[name], default)


_Fields: Final = msgspec.defstruct(
    "_Fields", [_member(f.name, f.default) for f in fields(Plan) if f.name not in _OWN_FORM]
)


class _Hosted(msgspec.Struct):
    max_calls: int
    is_shown: bool
    next_grammar: list[Any] | None


class _Saved(msgspec.Struct):
    plan: _Fields  # type: ignore[valid-type]
    grammar: list[Any] | None
    hosted: _Hosted | None
    id: str
    route: str
    principal: Principal | None
    timeout_s: float | None
    trace: tuple[str, str, bool, str]


_decode: Final = msgspec.msgpack.Decoder(_Saved).decode


def save(plan: Plan) -> bytes:
    """The plan as bytes; a long prompt takes milliseconds. Raises InvalidGrammar for a grammar that
    is too deep for any engine."""
    context, trace = plan.context, plan.context.trace
    saved = _Saved(
        plan=_Fields(**{name: getattr(plan, name) for name in _Fields.__struct_fields__}),
        grammar=_plain(plan.grammar),
        hosted=_saved_tools(plan.hosted),
        id=context.id,
        route=context.route,
        principal=context.principal,
        timeout_s=None if context.deadline is None else context.deadline.timeout_s,
        trace=(trace.trace_id, trace.span_id, trace.is_sampled, trace.state),
    )
    return msgspec.msgpack.encode(saved)


def restore(
    saved: bytes, format: ChatFormat, toolbox: Toolbox | None, deadline_at: Callable[[float], float]
) -> Plan:
    """The plan of these bytes; raises ValueError for those of another release.

    `deadline_at`: the time on the loop's clock at which a limit of that many seconds is over.
    """
    found = _decode(saved)
    timeout_s = found.timeout_s
    context = RequestContext(
        id=found.id,
        route=found.route,
        principal=found.principal,
        deadline=None if timeout_s is None else Deadline(deadline_at(timeout_s), timeout_s),
        trace=Trace(*found.trace),
    )
    return Plan(
        context=context,
        format=format,
        grammar=_grammar(found.grammar),
        hosted=_tools(found.hosted, toolbox),
        **msgspec.structs.asdict(found.plan),
    )


def _saved_tools(hosted: Hosted | None) -> _Hosted | None:
    if hosted is None:
        return None
    return _Hosted(hosted.max_calls, hosted.is_shown, _plain(hosted.next_grammar))


def _tools(saved: _Hosted | None, toolbox: Toolbox | None) -> Hosted | None:
    if saved is None:
        return None
    if toolbox is None:
        raise ValueError("its built-in tools are not connected here")
    return Hosted(toolbox, saved.max_calls, saved.is_shown, _grammar(saved.next_grammar))


def _plain(grammar: Grammar | None) -> list[Any] | None:
    return None if grammar is None else to_plain(grammar)


def _grammar(plain: list[Any] | None) -> Grammar | None:
    return None if plain is None else from_plain(plain)
