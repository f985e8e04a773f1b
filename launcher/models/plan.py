"""Plans: a model file with server settings and a memory estimate for one machine, with the reasons for them."""

import shlex
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace
from difflib import get_close_matches
from enum import Enum
from functools import cache
from math import inf
from typing import Any

from launcher.base.errors import BadOption, ModelUnknown
from launcher.base.messages import command_name, join_messages, mark, message, suggest_names
from launcher.models.catalogue import Catalogue, ModelEntry, ModelFile
from launcher.models.catalogue_load import load_catalogue
from launcher.models.drafters import NO_MTP
from launcher.models.evidence import accepted_shares
from launcher.models.file_size import expect_size
from launcher.models.fitting import (
    CONTEXT_WITHOUT_GPU,
    CONTEXTS,
    LEAST_CONTEXT,
    SHORT_CONTEXTS,
    FitResult,
    add_expert_cache,
    can_have_expert_cache,
    choose_host_limits,
    fit_settings,
    host_need_mib,
    overfills_host,
)
from launcher.models.geometry import Geometry, read_geometry
from launcher.models.gguf import GgufModel
from launcher.models.header_summary import apply_header, apply_summary, read_draft_model
from launcher.models.limits import no_head_error
from launcher.models.memory import DraftModel, MemoryEstimate, PlanSettings, check_kv, estimate_memory
from launcher.models.pass_time import measure_work
from launcher.models.plan_reasons import (
    describe_alternative,
    explain_expert_cache,
    explain_plan,
    explain_preset,
    explain_ranking,
    list_cautions,
)
from launcher.models.preset import Intent, Mark, Preset, PublishedRun
from launcher.models.ranking import KnownFile, RankedFile, WayToDraft, lack_of_score, rank_files
from launcher.models.server_settings import ServerSettings, check_settings, to_fields
from launcher.models.situation import HEADLESS_MARGIN_MIB, Situation, available_mib
from launcher.models.speed import (
    ReadingForecast,
    SpeedForecast,
    bandwidth_limit,
    compare_with_run,
    correct_forecast,
    forecast_reading,
    forecast_speed,
    nearest_runs,
)
from launcher.models.weights import Weights, read_weights

_MIB = 2**20
_SIZE_TOLERANCE = 1.05
"""Tolerance of a card's nominal size: 23.98 GiB count as 24 GB."""
_DEMO = "demo"
"""Id of the demo model, which is planned only when the user names it."""
_SHORT_CONTEXT = 8_192
"""Shortest context, in tokens, that is proposed where a model has other files."""
_MOST_FILES = 6
"""Number of files that are planned for a model that the user names."""
_POOR_LOSS = 2.5
"""Loss, without what speed gains, above which a model that fits better comes first."""
_ALWAYS_OFFERED_HOST_GB = 24
"""Presets that need at most so much host memory, in GB, are never left out."""
_NOMINAL_TO_USABLE = 1.034
"""Nominal size of a card divided by its usable memory, to find presets for a card with as much memory as is free."""


class Status(Enum):
    """The fit of a plan. TIGHT: it fits, but leaves less free than the margin, or its memory is not known well enough
    to be sure. OFFLOADS: experts are in host memory.

    TOO_BIG: the GPU's memory is too small for its part of the model, or host memory for the rest.
    """

    FITS = "FITS"
    TIGHT = "TIGHT"
    OFFLOADS = "OFFLOADS"
    TOO_BIG = "TOO BIG"


@dataclass(frozen=True, slots=True)
class PlanCriteria(ServerSettings):
    """The criteria of the user for plans. Server settings that are None are chosen by the plan.

    `vision` adds the model's vision projector; `mmproj_bytes` is the size of a projector file that the user named.
    """

    model: str | None = None
    intent: Intent = "balanced"
    quant: str | None = None
    vision: bool = False
    mmproj_bytes: int = 0


@dataclass(frozen=True, slots=True)
class Plan:
    """One way to run a model on a machine. Memory is in MiB.

    `limit_t_s` and `limit_full_t_s` are the upper limits without drafts, in tokens per second, at an empty and at a
    full context; `forecast` is the expected speed, None if it is not known. For an embedding model all three are
    None, and `reading` is the speed at which it reads. `engine` is the name of the engine that computed the estimate,
    "" for the formula. `reasons` explain the choices, `cautions` name costs and risks, `evidence` has the nearest
    published measurements. `host_short`: host memory is known to be too small for the part that stays there.
    `host_overfull`: the memory that a server adds on the host while it runs may be too much. `loss` is that of the
    ranking: None for a preset, infinite if no way to fit was found. `order` is the loss by which plans for different
    models are compared. `ways` are the ways to draft that its own was chosen from, () if there was nothing to choose.
    """

    entry: ModelEntry
    file: ModelFile
    setting: PlanSettings
    status: Status
    estimate: MemoryEstimate
    free_mib: int
    margin_mib: int
    mark: Mark
    reasons: tuple[str, ...]
    cautions: tuple[str, ...]
    evidence: tuple[PublishedRun, ...]
    limit_t_s: float | None
    limit_full_t_s: float | None
    forecast: SpeedForecast | None = None
    reading: ReadingForecast | None = None
    host_short: bool = False
    host_overfull: bool = False
    engine: str = ""
    loss: float | None = None
    order: float = inf
    ways: tuple[WayToDraft, ...] = ()

    @property
    def required_mib(self) -> int:
        """GPU memory that it takes, in MiB, rounded up."""
        return self.estimate.required_mib

    @property
    def needed_mib(self) -> int:
        """Memory that must be free, in MiB: more than it takes if several GPUs have unequal shares."""
        return self.estimate.needed_mib

    @property
    def group(self) -> int:
        """Rank: 0 for a safe and good plan, 1 for a poor one or one that may run out of memory, 2 for one too big."""
        if self.status is Status.TOO_BIG:
            return 2
        tight = self.free_mib - self.needed_mib < self.margin_mib // 2 or self.estimate.high > self.free_mib * _MIB
        poor = self.loss is not None and self.loss > _POOR_LOSS
        return 1 if tight or poor else 0


@dataclass(frozen=True, slots=True)
class UnplannedFile:
    """A model file without a plan because some fact is unknown. `quant` is None if that holds for all files.

    `reason` names the unknown fact, `remedy` a way to find it out.
    """

    model: str
    quant: str | None
    reason: str
    remedy: str


def estimate_argument(entry: ModelEntry, file: ModelFile) -> str:
    """Return a file as the argument of `mtp-launcher estimate`: its path, or REPO[@REVISION]:FILE."""
    if entry.repo is None:
        return file.file
    return f"{entry.repo}{f'@{entry.revision}' if entry.revision else ''}:{file.file}"


def check_criteria(criteria: PlanCriteria) -> None:
    """Raise BadOption for a server setting that no engine accepts."""
    check_settings(criteria)
    if criteria.kv is not None:
        check_kv(criteria.kv)


def make_plans(catalogue: Catalogue, situation: Situation, criteria: PlanCriteria) -> tuple[Plan, ...]:
    """Return plans for `situation`, the best one first.

    Raises ModelUnknown for a model or a quantisation that is not in the catalogue, and BadOption for an invalid
    setting.
    """
    check_criteria(criteria)
    plans = [
        plan
        for entry in _requested_entries(catalogue, criteria)
        for plan in _make_model_plans(entry, catalogue, situation, criteria)
    ]
    by_group = criteria.intent != "as-published"
    plans.sort(key=lambda plan: (plan.group if by_group or plan.group == 2 else 0, 0 if criteria.model else plan.order))
    possible = [plan for plan in plans if plan.status is not Status.TOO_BIG and plan.loss != inf]
    if possible and not criteria.model:
        plans = possible
    elif not possible and not criteria.model and by_group:  # the one that lacks least is named first
        plans.sort(key=lambda plan: plan.required_mib + host_need_mib(plan.estimate))
    if plans and plans[0].loss is not None and criteria.quant is None:
        named = _name_alternatives(plans[0], situation, criteria)
        plans[0] = replace(plans[0], reasons=(*plans[0].reasons[:2], *named, *plans[0].reasons[2:]))
    return tuple(plans)


def plan_file(model: GgufModel, situation: Situation, criteria: PlanCriteria) -> Plan:
    """Return the plan for a model file that is not in the catalogue.

    Raises GeometryUnknown for a model whose memory cannot be estimated, BadOption for an invalid setting, and
    ModelHasNoHead for drafts with a file that has no MTP head.
    """
    # Imported late: it needs the library, which other plans do not.
    from launcher.models.file_entry import describe_file

    check_criteria(criteria)
    entry = describe_file(model).with_drafter(criteria.chosen_drafter)
    (file,) = entry.files
    criteria = replace(criteria, model=entry.id, quant=None)
    _check_drafts(entry, file, criteria)
    known = entry, file, read_weights(model, read_geometry(model))
    ranked = next(iter(_rank_files([known], situation, criteria)), None)
    plan = _make_ranked_plan(known, ranked, situation, criteria)
    why = message(
        "The catalogue has no settings for {name}. These follow from its header and this computer.", name=entry.name
    )
    return replace(plan, reasons=(why, *plan.reasons))


def list_unplanned(catalogue: Catalogue, situation: Situation, criteria: PlanCriteria) -> tuple[UnplannedFile, ...]:
    """Return the model files that `make_plans` skips because of unknown facts, in the same order. Same errors."""
    check_criteria(criteria)
    found: dict[tuple[str, str | None], UnplannedFile] = {}
    for entry in _requested_entries(catalogue, criteria):
        presets = _matching_presets(entry, situation, criteria)
        files = {preset.quant: preset.draft for preset in presets} if presets else {}
        for file in _requested_files(entry, criteria):
            if presets and file.quant not in files and criteria.quant is None:
                continue
            known, file, _ = apply_summary(entry, file)
            if lack := _missing_fact(known, file, files.get(file.quant, 1), criteria):
                found[entry.id, file.quant] = UnplannedFile(entry.id, file.quant, *lack)
    return tuple(found.values())


def _requested_entries(catalogue: Catalogue, criteria: PlanCriteria) -> list[ModelEntry]:
    models = [each.with_drafter(criteria.chosen_drafter) for each in catalogue.models]
    if criteria.model:
        return [_with_projector(Catalogue(tuple(models)).find(criteria.model), criteria)]
    entries = [each for each in models if criteria.quant is None or each.file(criteria.quant)]
    if not entries and criteria.quant is not None:
        raise _unknown_quant_error(
            message("No model has {quant}.", quant=criteria.quant),
            criteria.quant,
            [file.quant for each in catalogue.models for file in each.files],
        )
    proposed = [each for each in entries if each.id != _DEMO and (each.projector or not criteria.vision)]
    keeps_all = criteria.quant is not None or criteria.intent == "as-published"
    return proposed if keeps_all else leave_out_doubles(proposed)


def leave_out_doubles(entries: Sequence[ModelEntry]) -> list[ModelEntry]:
    """Return models without those that another one makes needless.

    Such a model is the same one without its MTP head, whose files are ranked with those that have it, or one of the
    same shape with a lower score.
    """
    headless = {each.id for entry in entries for each in _list_headless(entry, entries)}
    best: dict[Geometry, float] = {}
    for each in entries:
        if each.score is not None and (shape := _shape_of(each)) is not None:
            best[shape] = max(each.score.value, best.get(shape, each.score.value))

    def is_succeeded(entry: ModelEntry) -> bool:
        shape = _shape_of(entry)
        score = None if shape is None else best.get(shape)
        return score is not None and (entry.score is None or score > entry.score.value)

    return [each for each in entries if each.id not in headless and not is_succeeded(each)]


def _shape_of(entry: ModelEntry) -> Geometry | None:
    """Return what a model's speed and memory follow from: its geometry without the MTP head."""
    return replace(entry.geometry, mtp_layers=0) if entry.geometry else None


def _with_projector(entry: ModelEntry, criteria: PlanCriteria) -> ModelEntry:
    if criteria.vision and entry.projector is None:
        raise BadOption(
            message("No vision projector of {id} is known.", id=entry.id),
            message("Omit --vision, or choose another model."),
        )
    return entry


def _unknown_quant_error(title: str, quant: str, known: Iterable[str]) -> ModelUnknown:
    by_name = {name.casefold(): name for name in known}
    near = [by_name[name] for name in get_close_matches(quant.casefold(), by_name)]
    return ModelUnknown(
        title,
        join_messages(
            suggest_names(near),
            message("{command} lists a model's files.", command=command_name("models ID", mark("Models"))),
        ),
        wanted=quant,
        near=near,
    )


def _requested_files(entry: ModelEntry, criteria: PlanCriteria) -> Sequence[ModelFile]:
    """Return the requested file, or all files that were not withdrawn. Raises ModelUnknown if there is no such file."""
    if criteria.quant is None:
        return [file for file in entry.files if not file.withdrawn]
    file = entry.file(criteria.quant)
    if file is None:
        raise _unknown_quant_error(
            message("{id} has no {quant}.", id=entry.id, quant=criteria.quant),
            criteria.quant,
            [file.quant for file in entry.files],
        )
    return [file]


def _missing_fact(entry: ModelEntry, file: ModelFile, draft: int, criteria: PlanCriteria) -> tuple[str, str] | None:
    """Return an unknown fact that a plan for `file` needs, and a remedy; None if all facts are known.

    `draft` is the draft length that is planned unless the user chose one.
    """
    if entry.geometry is None:
        by_checksum = entry.repo and file.sha256 is None and not file.parts
        remedy = _name_estimate(entry, file)
        return message("its layout is unknown"), join_messages(_name_refresh(entry), remedy) if by_checksum else remedy
    if expect_size(entry, file) is None:
        return message("its size is unknown"), _name_refresh(entry) if entry.repo else _name_estimate(entry, file)
    if criteria.vision and entry.projector and entry.projector.expected_bytes is None:
        state_it = message("Set size_bytes of {file}, or omit --vision.", file=entry.projector.file)
        return message("the size of its vision projector is unknown"), _name_refresh(entry) if entry.repo else state_it
    draft_file, length = entry.draft_file, draft if criteria.draft is None else criteria.draft
    if draft_file and length and draft_file.expected_bytes is None:
        state_it = message("Set size_bytes of {file}, or use {no_mtp}.", file=draft_file.file, no_mtp=NO_MTP)
        unknown = message("the size of its draft is unknown")
        return unknown, _name_refresh(entry) if entry.repo_of(draft_file) else state_it
    return None


def _name_estimate(entry: ModelEntry, file: ModelFile) -> str:
    """Return the sentence on the command that reads a file's header."""
    source = shlex.quote(estimate_argument(entry, file))
    if entry.repo:
        return message("{command} reads its header.", command=command_name(f"estimate {source}", mark("Models")))
    return message("{command} explains the problem.", command=command_name(f"estimate {source}", mark("Models")))


def _name_refresh(entry: ModelEntry) -> str:
    """Return the sentence on the command that asks the hub about a model's files."""
    return message(
        "{command} updates it from Hugging Face.", command=command_name(f"models {entry.id} --refresh", mark("Models"))
    )


def _make_model_plans(
    entry: ModelEntry, catalogue: Catalogue, situation: Situation, criteria: PlanCriteria
) -> list[Plan]:
    """Return the plans for one model, the best first: by the presets for this intent, else by the ranking."""
    files = _requested_files(entry, criteria)
    presets = _matching_presets(entry, situation, criteria)
    if presets:
        return _make_preset_plans(entry, files, presets, situation, criteria)
    if criteria.intent == "as-published":
        if criteria.model is None:
            return []
        criteria = replace(criteria, intent="balanced")
    known = _usable_files(entry, files, criteria)
    ranked = _rank_files(known, situation, criteria)
    if not ranked:  # the smallest file is nearest to fitting
        smallest = min(known, key=lambda each: _size_bytes(*each[:2]), default=None)
        return [] if smallest is None else [_make_ranked_plan(smallest, None, situation, criteria)]
    if criteria.quant is None and not ranked[0].drafts:
        for sibling in _list_headless(entry, catalogue.models):
            more = _usable_files(sibling, _requested_files(sibling, criteria), criteria)
            known += more
            ranked += _rank_files(more, situation, criteria)
        ranked.sort(key=lambda each: each.loss.total)
    by_file = {(each[0].id, each[1].quant): each for each in known}
    most = 1 if criteria.model is None else _MOST_FILES
    plans = [
        _make_ranked_plan(by_file[each.entry.id, each.file.quant], each, situation, criteria) for each in ranked[:most]
    ]
    if criteria.quant is not None:
        if len(entry.files) == 1:
            return plans
        chosen = message("{quant} is your choice.", quant=criteria.quant)
        return [replace(plan, reasons=(chosen, *plan.reasons)) for plan in plans]
    return [
        replace(plan, reasons=(*explain_ranking(ranked, place, situation, criteria.intent), *plan.reasons))
        for place, plan in enumerate(plans)
    ]


def _list_headless(entry: ModelEntry, entries: Iterable[ModelEntry]) -> list[ModelEntry]:
    """Return the same model in files without its MTP head: with MTP off they leave more memory for the rest."""
    if entry.geometry is None or not entry.geometry.mtp_layers or not entry.family:
        return []
    headless = replace(entry.geometry, mtp_layers=0)
    return [each for each in entries if (each.family, each.geometry) == (entry.family, headless)]


def _usable_files(entry: ModelEntry, files: Sequence[ModelFile], criteria: PlanCriteria) -> list[KnownFile]:
    """Return the files that can be planned, with the facts from their headers if these were read.

    Raises ModelHasNoHead if the user named the model and asks for drafts that none of its files can make.
    """
    known = [
        (described, file, weights)
        for described, file, weights in (apply_header(entry, file) for file in files)
        if weights is not None and _missing_fact(described, file, 1, criteria) is None
    ]
    if not criteria.drafter.drafts:
        return known
    drafting = [each for each in known if each[0].can_draft(each[1])]
    for described, file, _ in known if not drafting else ():
        _check_drafts(described, file, criteria)
    return drafting


def _size_bytes(entry: ModelEntry, file: ModelFile) -> int:
    size = expect_size(entry, file)
    return size.size_bytes if size else 0


def _make_preset_plans(
    entry: ModelEntry,
    files: Sequence[ModelFile],
    presets: Sequence[Preset],
    situation: Situation,
    criteria: PlanCriteria,
) -> list[Plan]:
    """Return the plans for presets; those that keep the experts where the preset has them come first."""
    found: dict[tuple[str, PlanSettings], tuple[bool, Plan]] = {}
    for preset in presets:
        named = entry.file(criteria.quant or preset.quant)
        if named is None or (criteria.quant and named not in files):
            continue
        known, file, weights = apply_header(entry, named)
        if (
            weights is None
            or _missing_fact(known, file, preset.draft, criteria)
            or not _check_drafts(known, file, criteria)
        ):
            continue
        setting = _preset_settings(known, file, preset, situation, criteria)
        plan = _make_plan(known, file, weights, setting, preset, situation, criteria)
        intent = criteria.intent if criteria.intent in preset.intents else preset.intents[0]
        moved = plan.setting.n_cpu_moe > 0 and not preset.n_cpu_moe
        plan = replace(plan, reasons=(explain_preset(file, preset, intent, situation), *plan.reasons))
        found.setdefault((file.quant, plan.setting), (moved, plan))
    return [plan for _, plan in sorted(found.values(), key=lambda one: one[0])]


def _rank_files(files: Sequence[KnownFile], situation: Situation, criteria: PlanCriteria) -> list[RankedFile]:
    """Return the best way to run each of `files` with the settings that the user chose, the best file first."""
    if not files:
        return []
    entry, file, _ = files[0]
    longest = Preset(quant=file.quant, ctx=_longest_context(entry, criteria))
    base = _preset_settings(entry, file, longest, situation, criteria)
    return rank_files(
        files,
        situation,
        criteria.intent,
        base,
        fixed=to_fields(criteria.chosen()),
        draft_models=_read_draft_models(entry),
        verified=1 if criteria.model is None else _MOST_FILES,
        shortest_context=_shortest_context(files, criteria),
    )


def _read_draft_models(entry: ModelEntry) -> dict[str, DraftModel]:
    """Return the drafts of a model whose headers were read, by the kind of file."""
    read = {kind: read_draft_model(entry, each) for each in entry.all_drafts for kind in each.kinds}
    return {kind: model for kind, model in read.items() if model is not None}


def _shortest_context(files: Sequence[KnownFile], criteria: PlanCriteria) -> int:
    """Return the shortest context to propose: short ones only for a model or file that the user named."""
    if criteria.model is None:
        return LEAST_CONTEXT
    return SHORT_CONTEXTS[-1] if len(files) == 1 else _SHORT_CONTEXT


def _ranked_preset(file: ModelFile, ranked: RankedFile | None, criteria: PlanCriteria) -> Preset:
    """Return a ranked file's settings as a preset; without `ranked`, settings that need little memory."""
    if ranked is None:
        return Preset(intents=(criteria.intent,), quant=file.quant, ctx=LEAST_CONTEXT, mark="derived")
    return Preset(
        intents=(criteria.intent,),
        quant=file.quant,
        ctx=ranked.context,
        kv=ranked.kv,
        draft=ranked.draft,
        n_cpu_moe=ranked.n_cpu_moe,
        mark="derived",
    )


def _make_ranked_plan(
    known: KnownFile, ranked: RankedFile | None, situation: Situation, criteria: PlanCriteria
) -> Plan:
    entry, file, weights = known
    preset = _ranked_preset(file, ranked, criteria)
    setting = _preset_settings(entry, file, preset, situation, criteria)
    if ranked is not None and ranked.drafts and ranked.drafter is not setting.drafter_if_on:
        setting = replace(setting, chosen_drafter=ranked.drafter.spec_type, draft=ranked.draft)
        entry = entry.with_drafter(setting.chosen_drafter)  # with its file
    return _make_plan(entry, file, weights, setting, preset, situation, criteria, ranked)


def _name_alternatives(plan: Plan, situation: Situation, criteria: PlanCriteria) -> list[str]:
    """Return sentences on what would be recommended for a GPU without a desktop, and for the best quality."""
    files = _usable_files(plan.entry, _requested_files(plan.entry, criteria), criteria)
    found: list[str] = []
    if not situation.headless and not situation.unified and situation.backend != "cpu":
        headless = replace(situation, headless=True, margin_mib=HEADLESS_MARGIN_MIB * situation.gpus)
        found.append(describe_alternative(plan.setting, plan.file, _rank_files(files, headless, criteria), None))
    if criteria.intent == "balanced":
        best = _rank_files(files, situation, replace(criteria, intent="best-quality"))
        found.append(describe_alternative(plan.setting, plan.file, best, "best-quality"))
    return [sentence for sentence in found if sentence]


def _check_drafts(entry: ModelEntry, file: ModelFile, criteria: PlanCriteria) -> bool:
    """Return whether `file` can make the requested drafts. Raises ModelHasNoHead if the user named the model."""
    is_possible = not criteria.drafter.drafts or entry.can_draft(file)
    if not is_possible and criteria.model:
        name = entry.name if entry.repo is None else f"{entry.id}:{file.quant}"
        known = next((each for each in load_catalogue().models if each.id == entry.id), entry)
        raise no_head_error(name, entry.drafter, listed=(known, file), file=file.file)
    return is_possible


def _preset_settings(
    entry: ModelEntry, file: ModelFile, preset: Preset, situation: Situation, criteria: PlanCriteria
) -> PlanSettings:
    """Return the settings of a preset with the user's choices, without those that this model or machine cannot use."""
    on_cpu = situation.backend == "cpu"
    values: dict[str, Any] = {
        "context": min(preset.ctx, CONTEXT_WITHOUT_GPU) if on_cpu else preset.ctx,
        "kv": preset.kv,
        "draft": preset.draft if entry.can_draft(file) and _is_draft_expected(entry, criteria) else 0,
        "ubatch": preset.ubatch,
        "slots": preset.slots,
        "n_cpu_moe": preset.n_cpu_moe,
        "threads": preset.threads or situation.threads,
        **to_fields(criteria.chosen()),
    }
    mmproj_bytes = criteria.mmproj_bytes
    if criteria.vision and entry.projector:
        mmproj_bytes = entry.projector.expected_bytes or 0
    geometry = entry.geometry
    most_on_host = 0 if on_cpu or geometry is None or not geometry.experts else geometry.layers + geometry.mtp_layers
    values["n_cpu_moe"] = min(values["n_cpu_moe"], most_on_host)
    return PlanSettings(
        **values,
        backend=situation.backend,
        **situation.memory_fields,
        mmproj_bytes=mmproj_bytes,
        draft_sizes=tuple((kind, each.expected_bytes or 0) for each in entry.all_drafts for kind in each.kinds),
        spec_type=entry.drafter.spec_type,
    )


def _is_draft_expected(entry: ModelEntry, criteria: PlanCriteria) -> bool:
    """Return whether a model drafts unasked: not with a file that only lies beside it, of which nothing is known."""
    lies_beside = entry.draft_file is not None and entry.draft_file.speculation is not None
    return not lies_beside or bool(criteria.chosen_drafter or accepted_shares(entry.drafter, entry.published_as))


def _longest_context(entry: ModelEntry, criteria: PlanCriteria) -> int:
    """Return the longest context to propose: the trained one for each slot, but more than CONTEXTS only on request."""
    trained = entry.native_context or (entry.geometry.trained_context if entry.geometry else 0)
    slots = criteria.slots if criteria.slots and not criteria.kv_unified else 1
    if not trained:
        return LEAST_CONTEXT
    return trained * slots if criteria.intent == "long-context" else min(trained * slots, CONTEXTS[0])


def _matching_presets(entry: ModelEntry, situation: Situation, criteria: PlanCriteria) -> list[Preset]:
    """Return the presets for this intent: those for a GPU of this size, then for one with as much free memory."""
    withdrawn = {file.quant for file in entry.files if file.withdrawn and file.quant != criteria.quant}
    offered = [preset for preset in entry.presets if preset.quant not in withdrawn]
    single = [preset for preset in offered if preset.slots == 1 or criteria.slots is not None] or offered
    rows = [preset for preset in single if criteria.intent in preset.intents]
    sizes = sorted({preset.memory_gb for preset in rows if preset.memory_gb})
    free_like_gb = situation.free_mib / 1_024 * _NOMINAL_TO_USABLE
    chosen: list[Preset] = [preset for preset in rows if preset.memory_gb is None]
    for nominal in (situation.nominal_gb * _SIZE_TOLERANCE, free_like_gb * _SIZE_TOLERANCE):
        size = max((size for size in sizes if size <= nominal), default=sizes[0] if sizes else None)
        chosen += [preset for preset in rows if preset.memory_gb == size]
    kept = [preset for preset in dict.fromkeys(chosen) if _suits_machine(preset, situation)]
    return kept or chosen


def _suits_machine(preset: Preset, situation: Situation) -> bool:
    """Return whether a preset's variant and its need of host memory suit the machine."""
    if preset.variant == "headless" and not situation.headless:
        return False
    need, have = preset.host_memory_gb_min, situation.host_mib
    if need is None or have is None:
        return True
    return need <= _ALWAYS_OFFERED_HOST_GB or have >= available_mib(need)


def _make_plan(
    entry: ModelEntry,
    file: ModelFile,
    weights: Weights,
    setting: PlanSettings,
    preset: Preset,
    situation: Situation,
    criteria: PlanCriteria,
    ranked: RankedFile | None = None,
) -> Plan:
    """Return the plan for a file, with `setting` shrunk until it fits. The setting is from `preset` or from
    `ranked`."""
    geometry, draft_models = entry.geometry, _read_draft_models(entry)
    draft_model = next((draft_models[kind] for kind in setting.drafter.files if kind in draft_models), None)
    fixed = to_fields(criteria.chosen())
    assert geometry is not None  # noqa: S101 -- _missing_fact has checked it

    @cache  # shrinking compares the same settings several times
    def measure(candidate: PlanSettings) -> MemoryEstimate:
        return estimate_memory(geometry, weights, candidate, draft_model)

    layers = weights.expert_layers(mtp=setting.drafter.uses_head) if situation.has_host_memory else 0
    budgets = [situation.free_mib - situation.margin_mib, situation.free_mib - situation.margin_mib // 2]
    if ranked is not None and (not ranked.n_cpu_moe or ranked.spare_mib < situation.margin_mib):
        del budgets[0]  # the ranking has weighed the room that it leaves
    intent = criteria.intent if criteria.intent in preset.intents else preset.intents[0]
    if intent == "as-published":  # the published settings are never shrunk
        fitted = FitResult(setting, measure(setting), ())
    else:
        fitted = fit_settings(setting, budgets, frozenset(fixed), layers, measure)

    def forecast(candidate: PlanSettings) -> SpeedForecast | None:
        family = entry.published_as
        return forecast_speed(file, geometry, weights, candidate, situation, family=family, draft_model=draft_model)

    def rate(candidate: PlanSettings) -> float | None:
        found = forecast(candidate)
        return found.tokens_per_second if found else None

    uncached, cached = fitted.setting, fitted
    may_cache = can_have_expert_cache(situation, geometry, setting.kv)
    if intent != "as-published" and not entry.embedding and may_cache:
        cached = add_expert_cache(
            fitted,
            budgets[0],
            frozenset(fixed),
            weights.expert_layers(mtp=False),  # a head's experts are needed for each drafted token
            situation.host_mib,
            measure,
            rate,
        )
    if situation.has_expert_cache:
        fitted = cached
    runs, drafter = nearest_runs(entry, file.quant, fitted.setting, situation), fitted.setting.drafter
    # Runs with another drafter tell only its speed without drafts.
    evidence = tuple(run for run in runs if not drafter.drafts or run.spec_type == drafter.spec_type)
    loss = None if preset in entry.presets else inf
    if ranked is not None:
        loss = ranked.loss.without_gain
        published = any(_is_near(run, file, situation) for run in evidence)
        preset = replace(preset, mark="measured" if published else "derived")
    elif not _is_as_preset(_preset_settings(entry, file, preset, situation, PlanCriteria()), fitted.setting):
        preset = replace(preset, mark="derived", note="")
    host_mib = situation.host_beside_mib(fitted.estimate.required_mib)
    host_short = situation.backend != "cpu" and host_mib is not None and host_mib < host_need_mib(fitted.estimate)
    limits = choose_host_limits(fitted.estimate, host_mib) if host_mib is not None else {}
    if limits:
        limited = replace(fitted.setting, **to_fields(limits))
        fitted = replace(fitted, setting=limited, estimate=measure(limited))
    estimate = fitted.estimate
    status = fit_status(
        estimate.needed_mib, fitted.setting, situation.free_mib, situation.margin_mib, most_mib=estimate.high / _MIB
    )
    if host_short:
        status = Status.TOO_BIG
    limit = full_limit = expected = reading = None
    if entry.embedding:
        reading = forecast_reading(measure_work(file, geometry, weights, 0).weights, situation)
    else:
        limit = bandwidth_limit(geometry, weights, fitted.setting, situation)
        full_limit = bandwidth_limit(geometry, weights, fitted.setting, situation, full=True)
        if not drafter.drafts or accepted_shares(drafter, entry.published_as):
            expected = forecast(fitted.setting)
        if expected is not None:
            ratios = _compare_with_runs(entry, runs, fitted.setting, situation, draft_model)
            expected = correct_forecast(expected, ratios)
            ranked = ranked and ranked.with_rate(expected.tokens_per_second)
    return Plan(
        entry=entry,
        file=file,
        setting=fitted.setting,
        status=status,
        estimate=fitted.estimate,
        free_mib=situation.free_mib,
        margin_mib=situation.margin_mib,
        mark=preset.mark,
        reasons=(
            *explain_plan(entry, file, weights, fitted, preset, situation, intent, fixed, measure, rate, ranked),
            *explain_expert_cache(uncached, cached.setting, rate, can_use=situation.has_expert_cache),
        ),
        cautions=list_cautions(entry, file, weights, fitted, situation, evidence, limits, measure),
        evidence=evidence,
        limit_t_s=limit,
        limit_full_t_s=full_limit,
        forecast=expected,
        reading=reading,
        host_short=host_short,
        host_overfull=host_mib is not None and overfills_host(fitted.estimate, host_mib),
        loss=loss,
        order=ranked.order if ranked else lack_of_score(entry),
        ways=ranked.ways if ranked else (),
    )


def _compare_with_runs(
    entry: ModelEntry,
    runs: Sequence[PublishedRun],
    setting: PlanSettings,
    situation: Situation,
    draft_model: DraftModel | None,
) -> list[float]:
    """Return the rates of published runs on this GPU as multiples of their forecasts."""
    found: list[float] = []
    for run in runs:
        # If the catalogue lacks the file, another publisher's of about that size is used.
        file = entry.file(run.quant or "") or entry.file(f"UD-{run.quant}")
        known, described, weights = apply_header(entry, file) if file else (entry, None, None)
        if described is not None and weights is not None and known.geometry is not None:
            facts = run, described, known.geometry, weights, setting, situation
            ratio = compare_with_run(*facts, family=entry.published_as, draft_model=draft_model)
            found += [ratio] if ratio else []
    return found


def _is_near(run: PublishedRun, file: ModelFile, situation: Situation) -> bool:
    """Return whether a published run used this file on GPUs of this memory."""
    return run.quant == file.quant and run.gpu_memory_gb == round(situation.nominal_gb)


def _is_as_preset(preset: PlanSettings, fitted: PlanSettings) -> bool:
    """Return whether fitted settings are still those of a preset; the number of layers with host experts may differ."""
    return replace(fitted, n_cpu_moe=preset.n_cpu_moe) == preset and bool(fitted.n_cpu_moe) == bool(preset.n_cpu_moe)


def fit_status(
    needed_mib: int, setting: PlanSettings, free_mib: int, margin_mib: int, *, most_mib: float = 0
) -> Status:
    """Return the fit of `needed_mib`, which may turn out to be `most_mib`, into `free_mib`, of which `margin_mib`
    should stay free.
    """
    if needed_mib > free_mib:
        return Status.TOO_BIG
    if setting.n_cpu_moe:
        return Status.OFFLOADS
    return Status.FITS if max(needed_mib + margin_mib, most_mib) <= free_mib else Status.TIGHT
