"""Three plans for one model: the recommended one, a faster one, and one of better quality.

The recommended plan is made for the intent `balanced`, the plan of better quality for `best-quality`. The faster plan
has the highest speed forecast among the plans that keep enough quality and context. If one of these two is the
recommended plan itself, or not clearly better than it, the user cannot choose it and reads why.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, replace
from enum import Enum

from launcher.base.messages import message
from launcher.models.catalogue import Catalogue
from launcher.models.fitting import CACHE_STEP_MIB, CONTEXTS, HOST_LIMITS, LEAST_CONTEXT, SHORT_CONTEXTS
from launcher.models.memory import PlanSettings, kv_bits
from launcher.models.plan import Plan, PlanCriteria, Status, make_plans
from launcher.models.ranking import expect_bits, expect_other_tokens
from launcher.models.server_settings import ROWS, Value, to_fields
from launcher.models.situation import Situation

_MOST_OTHER_TOKENS = 7.0
"""A faster plan's file may differ from the original in so many of 100 tokens (about 4.2 bits per weight), or in as many
as the recommended file does."""
_CLEARLY_FASTER = 1.05
"""Least ratio of speeds for which a plan counts as faster: below it, another file is not worth loading."""
_SAME_SPEED = 1.03
"""Ratio of speeds up to which the better of two fast plans is taken."""
_CLEARLY_BETTER = 0.2
"""Least difference of tokens in 100 for which a file counts as better."""
FOLLOWS_MEMORY = ("ctx", "n_cpu_moe", "moe_cache_mib")
"""The settings that a plan fits to the memory that is free."""


class StopName(Enum):
    """The three choices, from the fastest to the best."""

    FASTER = "faster"
    RECOMMENDED = "recommended"
    BETTER_QUALITY = "better-quality"


@dataclass(frozen=True, slots=True)
class PlanStop:
    """One of the three choices. If `lack` is not empty, it cannot be chosen: a message that says why.

    `plan` is the recommended one if there is no other.
    """

    name: StopName
    plan: Plan
    lack: str = ""


def make_stops(
    catalogue: Catalogue, situation: Situation, criteria: PlanCriteria, *, tuned: Plan | None = None
) -> tuple[PlanStop, ...]:
    """Return the choices for the model of `criteria`, in the order of StopName; () if it cannot be planned.

    `tuned` is the recommended plan with the settings that a tune found to be the fastest for its file, so that no other
    settings for this file are offered as faster. Raises what `make_plans` raises.
    """
    recommended = tuned or plan_recommended(catalogue, situation, criteria)
    if recommended is None:
        return ()
    if recommended.status is Status.TOO_BIG:
        lack = message("No file of this model fits into the memory that is free.")
        return tuple(PlanStop(name, recommended, lack) for name in StopName)
    return (
        _plan_faster(recommended, catalogue, situation, criteria, is_tuned=tuned is not None),
        PlanStop(StopName.RECOMMENDED, recommended),
        _plan_better(recommended, catalogue, situation, criteria),
    )


def plan_recommended(catalogue: Catalogue, situation: Situation, criteria: PlanCriteria) -> Plan | None:
    """Return the first plan for the model of `criteria` that fits, else the first one; None without any."""
    plans = make_plans(catalogue, situation, replace(criteria, intent="balanced"))
    fitting = [plan for plan in plans if plan.status is not Status.TOO_BIG]
    return next(iter(fitting or plans), None)


def keep_running_settings(
    stop: PlanStop, running: PlanSettings, catalogue: Catalogue, situation: Situation, criteria: PlanCriteria
) -> PlanStop:
    """Return a choice with the settings of the running server, if both differ only by a step that free memory explains.

    A plan that is made while a server runs may differ from the plan that the server was started with, because the
    engine takes a little more or less memory than estimated, and other programs come and go. If the choice kept its own
    settings, the running plan would be none of the three. A choice that differs by more than one step, or in another
    setting, stays as it is.
    """
    if stop.lack or not _differs_by_steps(stop.plan.setting, running):
        return stop
    settings = {name: row.value_in(stop.plan.setting) for name, row in ROWS.items() if name not in HOST_LIMITS}
    settings |= {name: ROWS[name].value_in(running) for name in FOLLOWS_MEMORY}
    same_file = replace(criteria, intent="balanced", quant=stop.plan.file.quant, **to_fields(settings))
    for plan in make_plans(catalogue, situation, same_file):
        if plan.status is not Status.TOO_BIG and not _list_differences(plan.setting, running):
            reasons = (*stop.plan.reasons[:1], *plan.reasons[1:])  # why this file, not "is your choice"
            return replace(stop, plan=replace(plan, reasons=reasons))
    return stop


def _list_differences(first: PlanSettings, second: PlanSettings) -> list[str]:
    """Return the names of the settings that differ, without the limits of host memory, which each start chooses."""

    def effective_values(settings: PlanSettings) -> dict[str, Value]:
        found = {name: row.effective_in(settings) for name, row in ROWS.items() if name not in HOST_LIMITS}
        return {name: ROWS[name].usual if value is None else value for name, value in found.items()}

    before, after = effective_values(first), effective_values(second)
    return [name for name, value in before.items() if value != after[name]]


def _differs_by_steps(first: PlanSettings, second: PlanSettings) -> bool:
    """Return whether settings differ, but only in those that follow free memory, each by one step at most."""
    low, high = sorted((first.context, second.context))
    are_near = (
        not any(low < context < high for context in (*CONTEXTS, *SHORT_CONTEXTS)),
        abs(first.n_cpu_moe - second.n_cpu_moe) <= 1,
        abs((first.moe_cache_mib or 0) - (second.moe_cache_mib or 0)) <= CACHE_STEP_MIB,
    )
    differences = _list_differences(first, second)
    return bool(differences) and set(differences) <= set(FOLLOWS_MEMORY) and all(are_near)


def expect_rate(plan: Plan) -> float | None:
    """Return the tokens per second that a plan is expected to write (an embedding model: to read); None if unknown."""
    figures = plan.forecast or plan.reading
    return figures.tokens_per_second if figures is not None else None


def _plan_faster(
    recommended: Plan, catalogue: Catalogue, situation: Situation, criteria: PlanCriteria, *, is_tuned: bool
) -> PlanStop:
    rate = expect_rate(recommended)
    if rate is None:
        lack = message("The speed of this model is not known here.")
        if is_tuned:
            lack = message("Recommended has the settings that a tune found to be the fastest.")
        return PlanStop(StopName.FASTER, recommended, lack)
    rates: list[tuple[float, Plan]] = []
    for plan in _list_candidates(recommended, catalogue, situation, criteria):
        is_same_file = plan.file.quant == recommended.file.quant
        own_rate = expect_rate(plan)
        if own_rate is None or plan.group > recommended.group or (is_tuned and is_same_file):
            continue
        if own_rate >= _CLEARLY_FASTER * rate and plan.setting.context >= _least_context(recommended):
            rates.append((own_rate, plan))
    if not rates:
        lack = message("Recommended is already the fastest plan with enough quality and context.")
        return PlanStop(StopName.FASTER, recommended, lack)
    fastest = max(each for each, _ in rates)
    nearly = [plan for each, plan in rates if each * _SAME_SPEED >= fastest]
    best = min(nearly, key=lambda plan: (expect_other_tokens(plan.entry, plan.file), -plan.setting.context))
    return PlanStop(StopName.FASTER, best)


def _list_candidates(
    recommended: Plan, catalogue: Catalogue, situation: Situation, criteria: PlanCriteria
) -> Iterator[Plan]:
    """Yield plans for the recommended file, and for all smaller ones of enough quality.

    Where experts are in host memory, plans with a short context are among them, because more of the experts then fit
    into the GPU's memory. Without drafts the recommended file is planned, too: a preset may have them although the
    forecast says that they do not pay.
    """
    entry = catalogue.find(criteria.model or recommended.entry.id)
    most_lost = max(_MOST_OTHER_TOKENS, expect_other_tokens(entry, recommended.file))
    most_bits = expect_bits(entry, recommended.file)
    for file in entry.files:
        if file.withdrawn or expect_bits(entry, file) > most_bits or expect_other_tokens(entry, file) > most_lost:
            continue
        of_file = replace(criteria, intent="balanced", quant=file.quant)
        plans = make_plans(catalogue, situation, of_file)
        yield from plans
        if any(plan.setting.n_cpu_moe for plan in plans) and criteria.context is None:
            yield from make_plans(catalogue, situation, replace(of_file, context=_least_context(recommended)))
    if recommended.setting.drafter.drafts and criteria.draft is None:
        without = replace(criteria, intent="balanced", quant=recommended.file.quant, draft=0)
        yield from make_plans(catalogue, situation, without)


def _least_context(recommended: Plan) -> int:
    """Return the shortest context, in tokens, with which a faster plan is still usable."""
    return min(LEAST_CONTEXT, recommended.setting.context)


def _plan_better(recommended: Plan, catalogue: Catalogue, situation: Situation, criteria: PlanCriteria) -> PlanStop:
    """Return the choice of better quality: it has a better file, or the same one with a finer KV cache."""
    for plan in make_plans(catalogue, situation, replace(criteria, intent="best-quality")):
        if plan.group <= recommended.group and _is_better(plan, recommended):
            return PlanStop(StopName.BETTER_QUALITY, plan)
    lack = message("Recommended is the best that fits.")
    return PlanStop(StopName.BETTER_QUALITY, recommended, lack)


def _is_better(plan: Plan, other: Plan) -> bool:
    if plan.file.quant == other.file.quant:
        return kv_bits(plan.setting.kv) > kv_bits(other.setting.kv)
    gain = expect_other_tokens(other.entry, other.file) - expect_other_tokens(plan.entry, plan.file)
    return gain >= _CLEARLY_BETTER
