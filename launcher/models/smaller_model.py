"""Finds a model that works on a machine where another is too big: a smaller file of it, or a smaller model."""

from contextlib import suppress
from dataclasses import replace

from launcher.base.errors import BadOption, ModelHasNoHead
from launcher.base.messages import message
from launcher.models.catalogue import Catalogue
from launcher.models.file_size import expect_size
from launcher.models.plan import Plan, PlanCriteria, Status, make_plans
from launcher.models.situation import Situation


def replace_misfits(
    plans: tuple[Plan, ...], catalogue: Catalogue, situation: Situation, criteria: PlanCriteria
) -> tuple[tuple[Plan, ...], Plan | None]:
    """Return the plans, with one that fits in the first place, if nothing that `criteria` leave open fits better.

    Where nothing fits that they name, the second value is what fits instead, None if nothing of `catalogue` does.
    """
    if not plans or any(plan.status is not Status.TOO_BIG for plan in plans):
        return plans, None
    size = expect_size(plans[0].entry, plans[0].file) if criteria.model is not None else None
    smaller = find_smaller(catalogue, situation, criteria, size.size_bytes if size else None)
    if smaller is None:
        return plans, None
    if criteria.model is None:
        return (smaller,), None
    is_same = criteria.quant is None and smaller.entry.id == plans[0].entry.id
    return ((smaller, *plans), None) if is_same else (plans, smaller)


def find_smaller(
    catalogue: Catalogue, situation: Situation, criteria: PlanCriteria, size_bytes: int | None = None
) -> Plan | None:
    """Return a plan that fits where those for `criteria` do not: of another file of the model, else of another model;
    None if nothing of `catalogue` fits. The server settings that the user chose are dropped if need be.

    Only files below `size_bytes` are considered, if it is given.
    """
    known = [each.id for each in catalogue.models if each.id == criteria.model]
    for wishes in (replace(criteria, quant=None, mmproj_bytes=0), PlanCriteria(intent=criteria.intent)):
        for model in (*known, None):
            with suppress(ModelHasNoHead, BadOption):
                plans = make_plans(catalogue, situation, replace(wishes, model=model))
                fitting = (each for each in plans if each.status is not Status.TOO_BIG and _is_below(each, size_bytes))
                if found := next(fitting, None):
                    return found
    return None


def _is_below(plan: Plan, size_bytes: int | None) -> bool:
    size = expect_size(plan.entry, plan.file)
    return size_bytes is None or (size is not None and size.size_bytes < size_bytes)


def describe_smaller(plan: Plan) -> str:
    """Return a sentence that names a plan's model, file and size as what fits instead."""
    size = expect_size(plan.entry, plan.file)
    return message(
        "What fits: {name}, {quant}, {size:.1f} GiB, with a context of {context:,} tokens ({id}:{quant}).",
        window="What fits: {name}, {quant}, {size:.1f} GiB, with a context of {context:,} tokens.",
        name=plan.entry.name,
        quant=plan.file.quant,
        size=size.size_bytes / 2**30 if size else 0.0,
        context=plan.setting.context,
        id=plan.entry.id,
    )
