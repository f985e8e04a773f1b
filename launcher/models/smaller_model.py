"""Finds a plan that fits where one is too big or poor: for another file of the model, else for another model."""

from collections.abc import Iterator
from dataclasses import replace

from launcher.base.errors import BadOption, ModelHasNoHead
from launcher.base.messages import FaceName, join_messages, message
from launcher.models.catalogue import Catalogue
from launcher.models.file_size import expect_size
from launcher.models.plan import Plan, PlanCriteria, Status, make_plans
from launcher.models.situation import Situation


def replace_misfits(
    plans: tuple[Plan, ...], catalogue: Catalogue, situation: Situation, criteria: PlanCriteria
) -> tuple[tuple[Plan, ...], Plan | None]:
    """Return `plans` and None; if the best of them is too big or poor, offer a plan that fits.

    If `criteria` name no model, the plan that fits replaces `plans`. Otherwise it is returned in place of None.
    """
    if not plans or plans[0].group == 0 or criteria.intent == "as-published":
        return plans, None
    smaller = find_smaller(catalogue, situation, criteria)
    if smaller is None or smaller.group >= plans[0].group:
        return plans, None
    return ((smaller,), None) if criteria.model is None else (plans, smaller)


def find_smaller(catalogue: Catalogue, situation: Situation, criteria: PlanCriteria) -> Plan | None:
    """Return the best plan that fits when those for `criteria` do not: for another file of the model, else for another
    model; None if no model of `catalogue` fits. The server settings that the user chose are dropped if need be.
    """
    found: Plan | None = None
    for plan in _plan_alternatives(catalogue, situation, criteria):
        if plan.group == 0:
            return plan
        if found is None and plan.status is not Status.TOO_BIG:
            found = plan
    return found


def _plan_alternatives(catalogue: Catalogue, situation: Situation, criteria: PlanCriteria) -> Iterator[Plan]:
    any_model = replace(criteria, model=None, quant=None, mmproj_bytes=0)
    known = any(entry.id == criteria.model for entry in catalogue.models)
    same_model = [replace(any_model, model=criteria.model)] if known else []
    for one_criteria in (*same_model, any_model, PlanCriteria(intent=criteria.intent)):
        try:
            yield from make_plans(catalogue, situation, one_criteria)
        except (ModelHasNoHead, BadOption):
            continue


def describe_misfit(plan: Plan, smaller: Plan | None) -> str:
    """Return why a plan is too big or poor, and what fits instead (None: nothing of the catalogue does)."""
    names = {"name": plan.entry.name, "quant": plan.file.quant}
    if plan.status is not Status.TOO_BIG:
        poorly = message("{name} {quant} fits only poorly.", **names)
        return join_messages(poorly, describe_smaller(smaller) if smaller else None)
    why = (
        message("{name} {quant} cannot work well here: there is too little host memory.", **names)
        if plan.host_short
        else message("{name} {quant} cannot work well here: there is too little memory.", **names)
    )
    return join_messages(why, describe_smaller(smaller) if smaller else message("No model of the catalogue fits."))


def describe_smaller(plan: Plan) -> str:
    """Return a sentence that names a plan's model, file and size as what fits instead."""
    size = expect_size(plan.entry, plan.file)
    return message(
        "What fits: {name}, {quant}, {size:.1f} GiB, with a context of {context:,} tokens[ ({target})].",
        name=plan.entry.name,
        quant=plan.file.quant,
        size=size.size_bytes / 2**30 if size else 0.0,
        context=plan.setting.context,
        target=FaceName(f"{plan.entry.id}:{plan.file.quant}"),
    )
