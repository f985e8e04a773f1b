"""Finds a model that works on a machine where another is too big: a smaller file of it, or a smaller model."""

from collections.abc import Iterator
from dataclasses import replace

from launcher.base.errors import BadOption, ModelHasNoHead
from launcher.base.messages import message
from launcher.models.catalogue import Catalogue, ModelEntry, ModelFile
from launcher.models.file_size import bits_per_weight, expect_size
from launcher.models.fitting import LEAST_CONTEXT
from launcher.models.plan import Plan, PlanCriteria, Status, make_plans
from launcher.models.situation import Situation

_GOOD_BITS, _LEAST_BITS = 4.7, 3.4
"""Bits per weight that lose little and save much, and the fewest that are proposed where something else fits."""
_USUAL_HOST_MIB = 12_288
"""Host memory that is taken to be available, in MiB, where it is unknown: three quarters of 16 GiB."""
_MIB = 2**20


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
    known = [each for each in catalogue.models if each.id == criteria.model]
    for wishes in (replace(criteria, model=None, quant=None, mmproj_bytes=0), PlanCriteria(intent=criteria.intent)):
        if known and (plan := plan_best_file(catalogue, known[0], situation, wishes, size_bytes=size_bytes)):
            return plan
        plans = make_plans(catalogue, situation, wishes)
        fitting = (each for each in plans if each.status is not Status.TOO_BIG and _is_below(each, size_bytes))
        if found := next(fitting, None):
            return found
    return _plan_largest_model(catalogue, situation, PlanCriteria(intent=criteria.intent), size_bytes)


def _is_below(plan: Plan, size_bytes: int | None) -> bool:
    size = expect_size(plan.entry, plan.file)
    return size_bytes is None or (size is not None and size.size_bytes < size_bytes)


def _plan_largest_model(
    catalogue: Catalogue, situation: Situation, criteria: PlanCriteria, size_bytes: int | None
) -> Plan | None:
    """Return the plan of the model with most parameters that fits, with a long context and enough bits if possible."""
    entries = sorted((each for each in catalogue.models if each.repo), key=lambda each: -(each.parameters_b or 0))
    plans = (
        plan_best_file(catalogue, entry, situation, criteria, strict=strict, size_bytes=size_bytes)
        for strict in (True, False)
        for entry in entries
    )
    return next(filter(None, plans), None)


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


def plan_best_file(
    catalogue: Catalogue,
    entry: ModelEntry,
    situation: Situation,
    criteria: PlanCriteria,
    *,
    strict: bool = True,
    size_bytes: int | None = None,
) -> Plan | None:
    """Return the plan of the fitting file whose bits per weight are the best; None if no file fits.

    `strict`: not with a shorter context than LEAST_CONTEXT or with fewer than _LEAST_BITS. Files of `size_bytes` or
    more are left out, if it is given.
    """
    if criteria.intent == "as-published":  # it has no settings for other files
        return None
    for file in _order_files(entry, situation, strict=strict, size_bytes=size_bytes):
        try:
            plans = make_plans(catalogue, situation, replace(criteria, model=entry.id, quant=file.quant))
        except (ModelHasNoHead, BadOption):
            continue
        fitting = [plan for plan in plans if plan.status is not Status.TOO_BIG]
        if fitting and (fitting[0].setting.context >= LEAST_CONTEXT or not strict):
            return fitting[0]
    return None


def _order_files(
    entry: ModelEntry, situation: Situation, *, strict: bool, size_bytes: int | None
) -> Iterator[ModelFile]:
    """Yield the files of a model that may fit by their size, those of the best bits per weight first."""
    room_mib = situation.free_mib
    if entry.geometry and entry.geometry.experts and situation.backend != "cpu":
        room_mib += _USUAL_HOST_MIB if situation.host_mib is None else situation.host_mib
    room_bytes = room_mib * _MIB if size_bytes is None else min(room_mib * _MIB, size_bytes - 1)
    bits = {file.quant: (bits_per_weight(file) or (0.0, 0.0, 0.0))[1] for file in entry.files}
    for file in sorted(entry.files, key=lambda each: abs(bits[each.quant] - _GOOD_BITS)):
        size = expect_size(entry, file)
        is_good = bits[file.quant] >= _LEAST_BITS or not strict
        if size and size.size_bytes <= room_bytes and is_good and not file.withdrawn:
            yield file
