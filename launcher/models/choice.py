"""Choice of the model file (quantisation) to download for a machine."""

from collections.abc import Sequence
from dataclasses import dataclass

from launcher.base.errors import BadOption, NothingFits
from launcher.base.messages import as_message, command_name, join_messages, mark, message
from launcher.models.catalogue import Catalogue, ModelEntry, ModelFile
from launcher.models.drafters import find_drafter, with_usual_length
from launcher.models.plan import Plan, PlanCriteria, Status, make_plans
from launcher.models.server_settings import to_fields
from launcher.models.situation import Situation
from launcher.models.smaller_model import describe_smaller, replace_misfits


@dataclass(frozen=True, slots=True)
class FileChoice:
    """The chosen file of a model, or of the same model without its MTP head.

    `plan` is how it would run (None if unknown), `why` a one-line reason.
    """

    entry: ModelEntry
    file: ModelFile
    plan: Plan | None
    why: str

    @property
    def name(self) -> str:
        """The file as `pull` takes it: ID:QUANT."""
        return f"{self.entry.id}:{self.file.quant}"


def choose_file(
    catalogue: Catalogue,
    entry: ModelEntry,
    quant: str | None,
    situation: Situation | None,
    *,
    vision: bool = False,
    drafter: str | None = None,
) -> FileChoice:
    """Return the file of a model that suits the machine best, or the file of `quant` with its plan.

    `situation` is None if the machine is unknown. `drafter` is what the user wants to draft with, as --spec-type calls
    it. Raises NothingFits if no file fits, BadOption if there is no basis for a choice, ModelHasNoHead for a drafter
    that the model lacks, and ModelUnknown for a quantisation that it does not have.
    """
    drafts = with_usual_length({"drafter": drafter}, find_drafter(drafter)) if drafter else {}
    is_shown = vision and entry.projector is not None
    criteria = PlanCriteria(model=entry.id, quant=quant, vision=is_shown, **to_fields(drafts))
    plans = make_plans(catalogue, situation, criteria) if situation else ()
    smaller: Plan | None = None
    if situation and quant is None:
        plans, smaller = replace_misfits(plans, catalogue, situation, criteria)
    named = entry.file(quant) if quant else None
    if not plans:
        file = named
        if file is None and len(entry.files) == 1:
            file = entry.files[0]
        elif file is None and situation:
            file = next((entry.file(each.quant) for each in entry.presets), None)
        if file is None:
            quants = ", ".join(each.quant for each in entry.files)
            raise BadOption(
                message("Cannot choose a file of {id} automatically.", id=entry.id),
                message("Choose a quant: {id}:QUANT, one of {quants}.", id=entry.id, quants=quants),
            )
        return FileChoice(entry, file, None, message("cannot tell whether it fits before its header is read"))
    plan = plans[0]
    if plan.status is Status.TOO_BIG and named is None:
        raise _nothing_fits_error(entry, plans, smaller)
    setting = plan.setting
    why = message(
        "{status}, needs {required_mib:,} of {free_mib:,} MiB free, with context {context:,}, KV {kv}, {drafts}",
        status=as_message(plan.status.value),
        required_mib=plan.required_mib,
        free_mib=plan.free_mib,
        context=setting.context,
        kv=setting.kv,
        drafts=setting.draft_choice.label(),
    )
    return FileChoice(plan.entry, plan.file, plan, why)


def _nothing_fits_error(entry: ModelEntry, plans: Sequence[Plan], smaller: Plan | None) -> NothingFits:
    """Return the error for a model of which no file fits, which names a model that does."""
    smallest = min(plans, key=lambda each: (each.host_short, each.required_mib))
    title = message(
        "No file of {id} fits: the smallest, {quant}, needs {required_mib:,} MiB, but only {free_mib:,} MiB are free.",
        id=entry.id,
        quant=smallest.file.quant,
        required_mib=smallest.required_mib,
        free_mib=smallest.free_mib,
    )
    if smallest.host_short:
        title = message(
            "No file of {id} fits: with {quant}, too little host memory is available for its experts.",
            id=entry.id,
            quant=smallest.file.quant,
        )
    anyway = message(
        "{command} lists models that fit. To download this one anyway, use {id}:{quant}.",
        id=entry.id,
        quant=smallest.file.quant,
        command=command_name("plan", mark("Start")),
    )
    facts = {"required_mib": smallest.required_mib, "free_mib": smallest.free_mib}
    return NothingFits(
        title,
        join_messages(describe_smaller(smaller) if smaller else None, anyway),
        **facts,
        smaller=f"{smaller.entry.id}:{smaller.file.quant}" if smaller else None,
    )
