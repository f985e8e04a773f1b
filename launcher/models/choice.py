"""Which file of a model to get for a machine."""

from dataclasses import dataclass

from launcher.base.errors import BadOption, NothingFits
from launcher.models.catalogue import Catalogue, ModelEntry, ModelFile
from launcher.models.plan import Plan, Status, Wish, make_plans
from launcher.models.situation import Situation


@dataclass(frozen=True, slots=True)
class Choice:
    """A model's file for a machine; `plan` says how it would run, None when that cannot be said, `why` in a line."""

    file: ModelFile
    plan: Plan | None
    why: str


def choose_file(
    catalogue: Catalogue, entry: ModelEntry, quant: str | None, situation: Situation | None, *, vision: bool = False
) -> Choice:
    """Return the file of a model that suits the machine best, or, where the user has named one, how that suits it.

    `situation` None is a machine that is not known. Raises NothingFits, BadOption when nothing tells which file to
    take, and ModelUnknown for a quantisation that the model has not.
    """
    wish = Wish(model=entry.id, quant=quant, vision=vision and entry.projector is not None)
    plans = make_plans(catalogue, situation, wish) if situation else ()
    named = entry.file(quant) if quant else None
    if not plans:
        by_preset = next((entry.file(each.quant) for each in entry.presets), None)
        file = named or (entry.files[0] if len(entry.files) == 1 else by_preset if situation else None)
        if file is None:
            quants = ", ".join(each.quant for each in entry.files)
            raise BadOption(
                f"Nothing tells which file of {entry.id} suits.", f"Name one, {entry.id}:QUANT, of {quants}."
            )
        return Choice(file, None, "whether it fits is not known before its header is read")
    plan = plans[0]
    if plan.status is Status.TOO_BIG and named is None:
        smallest = min(plans, key=lambda each: each.required_mib)
        raise NothingFits(
            f"No file of {entry.id} fits: the smallest, {smallest.file.quant}, takes {smallest.required_mib:,} MiB of"
            f" {smallest.free_mib:,} that are free.",
            f"`mtp-launcher plan` names models that fit. To get it all the same, name it:"
            f" {entry.id}:{smallest.file.quant}.",
            required_mib=smallest.required_mib,
            free_mib=smallest.free_mib,
        )
    setting = plan.setting
    drafts = f"draft {setting.draft}" if setting.draft else "no MTP"
    why = (
        f"{plan.status.value}, {plan.required_mib:,} of {plan.free_mib:,} MiB free with context {setting.context:,},"
        f" KV {setting.kv}, {drafts}"
    )
    return Choice(plan.file, plan, why)
