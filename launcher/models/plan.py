"""Plans: a model file with server settings and a memory estimate for one machine, with the reasons for them."""

import shlex
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace
from difflib import get_close_matches
from enum import Enum

from launcher.base.errors import BadOption, ModelUnknown
from launcher.base.messages import join_messages, message
from launcher.models.catalogue import SPECULATION, Catalogue, CompanionFile, ModelEntry, ModelFile
from launcher.models.file_size import expect_size
from launcher.models.fitting import (
    CONTEXT_WITHOUT_GPU,
    CONTEXTS,
    LEAST_CONTEXT,
    FitResult,
    add_expert_cache,
    choose_host_limits,
    fit_longest_context,
    fit_settings,
    host_need_mib,
    overfills_host,
)
from launcher.models.geometry import read_geometry
from launcher.models.gguf import GgufModel
from launcher.models.header_summary import apply_header, read_draft_model
from launcher.models.limits import no_head_error
from launcher.models.memory import MemoryEstimate, PlanSettings, check_kv, estimate_memory
from launcher.models.plan_reasons import explain_expert_cache, explain_plan, list_cautions
from launcher.models.preset import Intent, Mark, Measurement, Preset
from launcher.models.server_settings import ServerSettings, check_settings, to_fields
from launcher.models.situation import Situation
from launcher.models.speed import (
    ReadingForecast,
    SpeedForecast,
    bandwidth_limit,
    forecast_reading,
    forecast_speed,
    measure_work,
    nearest_measurements,
)
from launcher.models.weights import Weights, read_weights

_MIB = 2**20
_OLD_CLASSES = 1.05
"""Tolerance of a card's nominal size: 23.98 GiB count as 24 GB."""
_DEMO = "demo"
"""Id of the demo model, which is planned only when the user names it."""
_OPEN_INTENTS: tuple[Intent, ...] = ("balanced", "long-context", "best-quality")
"""Intents of settings that are computed for a model without presets."""
_LEAST_HOST_GB, _AVAILABLE = 24, 0.7
"""Presets that need at most the first (GB of host memory) are never left out; the second is the share of a computer's
memory that is taken to be available."""
_LIKE_CARD = 1.034
"""Nominal size of a card over its usable memory, to find the card that has as much memory as is free here."""


class Status(Enum):
    """The fit of a plan. TIGHT: it fits, but leaves less free than the margin. OFFLOADS: experts are in host memory.

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
    full context; `forecast` is the expected speed, None if the GPU is not known. For an embedding model all three are
    None, and `reading` is the speed at which it reads. `engine` is the name of the engine that computed the estimate,
    "" for the formula. `reasons` explain the choices, `cautions` name costs and risks, `evidence` has the nearest
    published measurements. `host_short`: host memory is known to be too small for the part that stays there.
    `host_overfull`: the memory that a server adds on the host while it runs may be too much.
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
    evidence: tuple[Measurement, ...]
    limit_t_s: float | None
    limit_full_t_s: float | None
    forecast: SpeedForecast | None = None
    reading: ReadingForecast | None = None
    host_short: bool = False
    host_overfull: bool = False
    engine: str = ""

    @property
    def required_mib(self) -> int:
        """GPU memory that it takes, in MiB, rounded up."""
        return -(-self.estimate.parts.total // _MIB)

    @property
    def needed_mib(self) -> int:
        """Memory that must be free, in MiB: more than it takes if several GPUs have unequal shares."""
        return -(-self.estimate.needed_bytes // _MIB)

    @property
    def group(self) -> int:
        """Rank: 0 for a safe plan, 1 for one that may fail if other programs take memory, 2 for one that is too big."""
        if self.status is Status.TOO_BIG:
            return 2
        return 1 if self.free_mib - self.needed_mib < self.margin_mib // 2 else 0


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
        for plan in _make_model_plans(entry, situation, criteria)
    ]
    plans.sort(key=lambda plan: plan.group if criteria.intent != "as-published" or plan.group == 2 else 0)
    possible = [plan for plan in plans if plan.status is not Status.TOO_BIG]
    plans = plans if criteria.model or not possible else possible
    if plans and criteria.quant is None and (why := _rank_reason(plans[0], plans[1:])):
        plans[0] = replace(plans[0], reasons=(plans[0].reasons[0], why, *plans[0].reasons[1:]))
    return tuple(plans)


def plan_file(model: GgufModel, situation: Situation, criteria: PlanCriteria) -> Plan:
    """Return the plan for a model file that is not in the catalogue.

    Raises GeometryUnknown for a model whose memory cannot be estimated, BadOption for an invalid setting, and
    ModelHasNoHead for drafts with a file that has no MTP head.
    """
    from launcher.models.file_entry import describe_file  # late: it needs the library, which other plans do not

    check_criteria(criteria)
    entry = describe_file(model)
    (file,) = entry.files
    weights = read_weights(model, read_geometry(model))
    criteria = replace(criteria, model=entry.id, quant=None)
    _can_draft(entry, file, criteria)
    (preset,) = _starting_presets(entry, situation, criteria)
    return _make_plan(
        entry, file, weights, _preset_settings(entry, file, preset, situation, criteria), preset, situation, criteria
    )


def list_unplanned(catalogue: Catalogue, situation: Situation, criteria: PlanCriteria) -> tuple[UnplannedFile, ...]:
    """Return the model files that `make_plans` skips because of unknown facts, in the same order. Same errors."""
    check_criteria(criteria)
    found: dict[tuple[str, str | None], UnplannedFile] = {}
    for entry in _requested_entries(catalogue, criteria):
        seeds = _starting_presets(entry, situation, criteria)
        for known, file, _, preset in _files_of_presets(entry, seeds, criteria):
            if lack := _missing_fact(known, file, preset, criteria):
                found[entry.id, file.quant] = UnplannedFile(entry.id, file.quant, *lack)
    return tuple(found.values())


def _requested_entries(catalogue: Catalogue, criteria: PlanCriteria) -> list[ModelEntry]:
    if criteria.model:
        return [_with_projector(catalogue.find(criteria.model), criteria)]
    having = [each for each in catalogue.models if criteria.quant is None or each.file(criteria.quant)]
    if not having and criteria.quant is not None:
        raise _unknown_quant_error(
            message("No model has {quant}.", quant=criteria.quant),
            criteria.quant,
            [file.quant for each in catalogue.models for file in each.files],
        )
    meant = (each for each in having if each.id != _DEMO and (each.projector or not criteria.vision))
    return sorted(meant, key=lambda each: each.preference)


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
    meant = message("Did you mean {near}?", near=" or ".join(near)) if near else None
    return ModelUnknown(
        title,
        join_messages(meant, message("`mtp-launcher models ID` lists a model's files.")),
        wanted=quant,
        near=near,
    )


def _files_of_presets(
    entry: ModelEntry, seeds: Iterable[Preset], criteria: PlanCriteria
) -> list[tuple[ModelEntry, ModelFile, Weights | None, Preset]]:
    """Return entry, file and weights for each preset's file, or for the requested one, with the preset.

    Raises ModelUnknown if the requested file does not exist.
    """
    if criteria.quant is not None and entry.file(criteria.quant) is None:
        raise _unknown_quant_error(
            message("{id} has no {quant}.", id=entry.id, quant=criteria.quant),
            criteria.quant,
            [file.quant for file in entry.files],
        )
    named = [(file, preset) for preset in seeds if (file := entry.file(criteria.quant or preset.quant))]
    return [(*apply_header(entry, file), preset) for file, preset in named]


def _missing_fact(entry: ModelEntry, file: ModelFile, preset: Preset, criteria: PlanCriteria) -> tuple[str, str] | None:
    """Return an unknown fact that a plan for `file` needs, and a remedy; None if all facts are known."""
    source = shlex.quote(estimate_argument(entry, file))
    estimate_it = (
        message("`mtp-launcher estimate {source}` reads its header.", source=source)
        if entry.repo
        else message("`mtp-launcher estimate {source}` explains the problem.", source=source)
    )
    ask_hub = message(
        "`mtp-launcher models {id} --refresh` updates it from Hugging Face.",
        window="In a terminal, `mtp-launcher models {id} --refresh` updates it from Hugging Face.",
        id=entry.id,
    )
    if entry.geometry is None:
        by_checksum = entry.repo and file.sha256 is None and not file.parts
        return message("its layout is unknown"), join_messages(ask_hub, estimate_it) if by_checksum else estimate_it
    if expect_size(entry, file) is None:
        return message("its size is unknown"), ask_hub if entry.repo else estimate_it
    if criteria.vision and entry.projector and entry.projector.expected_bytes is None:
        state_it = message("Set size_bytes of {file}, or omit --vision.", file=entry.projector.file)
        return message("the size of its vision projector is unknown"), ask_hub if entry.repo else state_it
    beside, drafts = _draft_file(entry), preset.draft if criteria.draft is None else criteria.draft
    if beside and drafts and beside.expected_bytes is None:
        state_it = message("Set size_bytes of {file}, or use --no-mtp.", file=beside.file)
        return message("the size of its draft is unknown"), ask_hub if beside.repo or entry.repo else state_it
    return None


def _draft_file(entry: ModelEntry) -> CompanionFile | None:
    """Return the separate draft file of a model, or None if its kind of speculation needs none."""
    return entry.draft if entry.speculation and SPECULATION[entry.speculation].needs_draft_file else None


def _make_model_plans(entry: ModelEntry, situation: Situation, criteria: PlanCriteria) -> list[Plan]:
    """Return the plans for one model; those that keep the experts where the preset has them come first."""
    found: dict[tuple[str, PlanSettings], tuple[bool, Plan]] = {}
    for known, file, weights, preset in _files_of_presets(
        entry, _starting_presets(entry, situation, criteria), criteria
    ):
        if weights is None or _missing_fact(known, file, preset, criteria) or not _can_draft(known, file, criteria):
            continue
        setting = _preset_settings(known, file, preset, situation, criteria)
        plan = _make_plan(known, file, weights, setting, preset, situation, criteria)
        moved = plan.setting.n_cpu_moe > 0 and not preset.n_cpu_moe
        found.setdefault((file.quant, plan.setting), (moved, plan))
    return [plan for _, plan in sorted(found.values(), key=lambda one: one[0])]


def _can_draft(entry: ModelEntry, file: ModelFile, criteria: PlanCriteria) -> bool:
    """Return whether `file` can make the requested drafts. Raises ModelHasNoHead if the user named the model."""
    can = entry.has_head(file) if entry.speculation in ("mtp", None) else True
    if criteria.draft and not can and criteria.model:
        own = not entry.presets and entry.repo is None
        raise no_head_error(entry.name if own else f"{entry.id}:{file.quant}", file=file.file)
    return can or not criteria.draft


def _preset_settings(
    entry: ModelEntry, file: ModelFile, preset: Preset, situation: Situation, criteria: PlanCriteria | None = None
) -> PlanSettings:
    """Return the setting of a preset, with the user's choices, and without what this model or machine cannot use."""
    on_cpu = situation.backend == "cpu"
    headless_file = not entry.has_head(file) and entry.speculation in (("mtp",) if entry.presets else ("mtp", None))
    context = preset.ctx if entry.presets else _longest_context(entry, criteria)
    setting = PlanSettings(
        context=min(context, CONTEXT_WITHOUT_GPU) if on_cpu else context,
        kv=preset.kv,
        draft=0 if headless_file else preset.draft,
        ubatch=preset.ubatch,
        slots=preset.slots,
        n_cpu_moe=preset.n_cpu_moe,
        threads=preset.threads,
        backend=situation.backend,
        gpus=situation.gpus,
        gpu_free_mib=situation.gpu_free_mib,
        overheads_mib=situation.overheads_mib,
    )
    if criteria is not None:
        setting = replace(setting, **to_fields(criteria.chosen()))
    geometry, beside = entry.geometry, _draft_file(entry)
    projector = entry.projector if criteria is not None and criteria.vision else None
    with_experts = 0 if on_cpu or geometry is None or not geometry.experts else geometry.layers + geometry.mtp_layers
    return replace(
        setting,
        n_cpu_moe=min(setting.n_cpu_moe, with_experts),
        mmproj_bytes=(projector.expected_bytes or 0)
        if projector
        else criteria.mmproj_bytes
        if criteria is not None
        else 0,
        draft_model_bytes=(beside.expected_bytes or 0) if beside and setting.draft else 0,
        ngrams=entry.speculation == "ngram-mod",
    )


def _longest_context(entry: ModelEntry, criteria: PlanCriteria | None) -> int:
    """Return the longest context to try for a model without presets: its trained context for each slot."""
    trained = entry.native_context or (entry.geometry.trained_context if entry.geometry else 0)
    slots = criteria.slots if criteria is not None and criteria.slots and not criteria.kv_unified else 1
    return min(trained * slots, CONTEXTS[0]) if trained else LEAST_CONTEXT


def _starting_presets(entry: ModelEntry, situation: Situation, criteria: PlanCriteria) -> list[Preset]:
    """Return the presets to plan with: those for a GPU of this size, then those for a GPU with as much free memory.

    A model without presets is planned only if the user names it, with one derived preset for each file.
    """
    if not entry.presets:
        quants = (
            []
            if criteria.model is None
            else [criteria.quant]
            if criteria.quant
            else [file.quant for file in entry.files if not file.withdrawn]
        )
        return [Preset(intents=_OPEN_INTENTS, quant=quant, ctx=LEAST_CONTEXT, mark="derived") for quant in quants]
    gone = {file.quant for file in entry.files if file.withdrawn and file.quant != criteria.quant}
    offered = [preset for preset in entry.presets if preset.quant not in gone]
    single = [preset for preset in offered if preset.slots == 1 or criteria.slots is not None] or offered
    rows = [preset for preset in single if criteria.intent in preset.intents]
    if not rows:
        rows = single if criteria.model is not None else []
    sizes = sorted({preset.memory_gb for preset in rows if preset.memory_gb})
    free_like_gb = situation.free_mib / 1_024 * _LIKE_CARD
    chosen: list[Preset] = [preset for preset in rows if preset.memory_gb is None]
    for nominal in (situation.nominal_gb * _OLD_CLASSES, free_like_gb * _OLD_CLASSES):
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
    return need <= _LEAST_HOST_GB or have >= need * 1_024 * _AVAILABLE


def _make_plan(
    entry: ModelEntry,
    file: ModelFile,
    weights: Weights,
    setting: PlanSettings,
    preset: Preset,
    situation: Situation,
    criteria: PlanCriteria,
) -> Plan:
    geometry, beside = entry.geometry, read_draft_model(entry) if setting.draft_model_bytes else None
    fixed = to_fields(criteria.chosen())
    assert geometry is not None  # noqa: S101 -- _lack has checked it

    def measure(candidate: PlanSettings) -> MemoryEstimate:
        return estimate_memory(geometry, weights, candidate, beside)

    layers = weights.expert_layers(mtp=setting.draft > 0) if situation.backend != "cpu" else 0
    budgets = [situation.free_mib - situation.margin_mib, situation.free_mib - situation.margin_mib // 2]
    intent = criteria.intent if criteria.intent in preset.intents else preset.intents[0]
    if intent == "as-published":  # the published settings are never shrunk
        fitted = FitResult(setting, measure(setting), ())
    else:
        fitted = (fit_settings if entry.presets else fit_longest_context)(
            setting, budgets, frozenset(fixed), layers, measure
        )

    def forecast_rate(candidate: PlanSettings) -> float | None:
        forecast = forecast_speed(file, geometry, weights, candidate, situation)
        return forecast.tokens_per_second if forecast else None

    uncached = fitted.setting
    if situation.has_expert_cache and intent != "as-published":
        fitted = add_expert_cache(
            fitted,
            budgets[0],
            frozenset(fixed),
            weights.expert_layers(mtp=False),  # a head's experts are needed for each drafted token
            situation.host_mib,
            measure,
            forecast_rate,
        )
    evidence = nearest_measurements(entry, file.quant, fitted.setting, situation)
    if not _is_as_preset(_preset_settings(entry, file, preset, situation), fitted.setting):
        preset = replace(preset, mark="derived", note="")
    host_short = (
        situation.backend != "cpu"
        and situation.host_mib is not None
        and situation.host_mib < host_need_mib(fitted.estimate)
    )
    limits = choose_host_limits(fitted.estimate, situation.host_mib) if situation.host_mib is not None else {}
    if limits:
        limited = replace(fitted.setting, **to_fields(limits))
        fitted = replace(fitted, setting=limited, estimate=measure(limited))
    return Plan(
        entry=entry,
        file=file,
        setting=fitted.setting,
        status=Status.TOO_BIG
        if host_short
        else fit_status(fitted.needed_mib, fitted.setting, situation.free_mib, situation.margin_mib),
        estimate=fitted.estimate,
        free_mib=situation.free_mib,
        margin_mib=situation.margin_mib,
        mark=preset.mark,
        reasons=(
            *explain_plan(entry, file, weights, fitted, preset, situation, intent, fixed, measure),
            *explain_expert_cache(uncached, fitted.setting, forecast_rate),
        ),
        cautions=list_cautions(entry, file, weights, fitted, situation, evidence, limits, measure),
        evidence=evidence,
        limit_t_s=None if entry.embedding else bandwidth_limit(geometry, weights, fitted.setting, situation),
        limit_full_t_s=None
        if entry.embedding
        else bandwidth_limit(geometry, weights, fitted.setting, situation, full=True),
        forecast=None if entry.embedding else forecast_speed(file, geometry, weights, fitted.setting, situation),
        reading=forecast_reading(measure_work(file, geometry, weights, 0).weights, situation)
        if entry.embedding
        else None,
        host_short=host_short,
        host_overfull=situation.host_mib is not None and overfills_host(fitted.estimate, situation.host_mib),
    )


def _is_as_preset(whole: PlanSettings, found: PlanSettings) -> bool:
    """Return whether `found` still is the preset's setting; the number of layers with host experts may differ."""
    return replace(found, n_cpu_moe=whole.n_cpu_moe) == whole and bool(found.n_cpu_moe) == bool(whole.n_cpu_moe)


def fit_status(needed_mib: int, setting: PlanSettings, free_mib: int, margin_mib: int) -> Status:
    """Return the fit of `needed_mib` into `free_mib`, of which `margin_mib` should stay free."""
    if needed_mib > free_mib:
        return Status.TOO_BIG
    if setting.n_cpu_moe:
        return Status.OFFLOADS
    return Status.FITS if needed_mib + margin_mib <= free_mib else Status.TIGHT


def _rank_reason(first: Plan, others: Sequence[Plan]) -> str:
    """Return why a plan ranks above another of the same model that leaves more memory free, or has a larger file."""
    same = [each for each in others if each.entry.id == first.entry.id and each.group == first.group < 2]
    roomier = next((each for each in same if each.status.value == "FITS" != first.status.value), None)
    if first.status.value == "TIGHT" and roomier and (roomier.file.size_bytes or 0) < (first.file.size_bytes or 0):
        spare = first.free_mib - first.needed_mib
        return message(
            "It is ranked above {quant} because its weights are better and {spare:,} MiB free is enough "
            "unless other programs need much memory. In that case use --quant {quant}.",
            window=(
                "It is ranked above {quant} because its weights are better and {spare:,} MiB free is enough "
                "unless other programs need much memory. In that case choose {quant}."
            ),
            quant=roomier.file.quant,
            spare=spare,
        )
    larger = next((each for each in same if (each.file.size_bytes or 0) > (first.file.size_bytes or 0)), None)
    if larger is None or larger.setting.n_cpu_moe > first.setting.n_cpu_moe:
        return ""
    if larger.setting.context < first.setting.context:
        return message(
            "{quant} is larger and also fits, but with a context of {context:,} instead of {context_2:,}: "
            "--quant {quant}.",
            window="{quant} is larger and also fits, but with a context of {context:,} instead of {context_2:,}.",
            quant=larger.file.quant,
            context=larger.setting.context,
            context_2=first.setting.context,
        )
    return message(
        "{quant} is larger and also fits (--quant {quant}).",
        window="{quant} is larger and also fits.",
        quant=larger.file.quant,
    )
