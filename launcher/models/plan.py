"""Plans: which file of which model to run how on a machine, whether it fits, and why."""

import shlex
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, replace
from difflib import get_close_matches
from enum import Enum

from launcher.base.errors import BadOption, ModelHasNoHead, ModelUnknown
from launcher.base.words import part
from launcher.models.catalogue import SPECULATION, Catalogue, CompanionFile, ModelEntry, ModelFile
from launcher.models.cautions import cautions_for, host_need_mib
from launcher.models.fitting import Fitted, fit
from launcher.models.header_summary import draft_of, known_of
from launcher.models.limits import check_kv, check_limits
from launcher.models.memory import Estimate, Setting, estimate
from launcher.models.preset import Intent, Mark, Measurement, Preset
from launcher.models.reasons import rank_reason, reasons_for
from launcher.models.situation import Situation
from launcher.models.speed import nearest, roofline
from launcher.models.weights import Weights

_MIB = 2**20
_OLD_CLASSES = 1.05
"""A card of 23.98 GiB counts as one of 24 GB."""
_DEMO = "demo"
"""The model that is planned only when it is asked for."""
_CONTEXT_WITHOUT_GPU = 32_768
"""A processor would read a longer one for many minutes."""
_LEAST_HOST_GB, _AVAILABLE = 24, 0.7
"""A preset for less host memory than the first is never left out; of a computer's memory this share is available."""
_LIKE_CARD = 1.034
"""Free memory over the nominal size of the card that has as much: the inverse of what is usable of it."""


class Status(Enum):
    """How a plan fits. TIGHT: it fits, but the margin does not stay free. OFFLOADS: experts lie in host memory."""

    FITS = "FITS"
    TIGHT = "TIGHT"
    OFFLOADS = "OFFLOADS"
    TOO_BIG = "TOO BIG"


@dataclass(frozen=True, slots=True)
class Wish:
    """What a user asks for; None leaves the choice to us. `draft` 0 is MTP off, `vision` asks for a projector."""

    model: str | None = None
    intent: Intent = "balanced"
    quant: str | None = None
    context: int | None = None
    kv: str | None = None
    draft: int | None = None
    ubatch: int | None = None
    n_cpu_moe: int | None = None
    slots: int | None = None
    vision: bool = False

    def overrides(self) -> dict[str, int | str]:
        """Return the fields of a Setting that the user has fixed."""
        chosen: Mapping[str, int | str | None] = {
            "context": self.context,
            "kv": self.kv,
            "draft": self.draft,
            "ubatch": self.ubatch,
            "n_cpu_moe": self.n_cpu_moe,
            "slots": self.slots,
        }
        return {name: value for name, value in chosen.items() if value is not None}


@dataclass(frozen=True, slots=True)
class Plan:
    """One way to run a model on a machine: MiB for memory, tokens per second for limits.

    The limits are those of passes of one token, at an empty context and at a full one.
    `reasons` say why it is as it is, `cautions` what it costs or risks, `evidence` what was measured nearest to it.
    `host_short` when the host is known to have too little memory for what stays there.
    """

    entry: ModelEntry
    file: ModelFile
    setting: Setting
    status: Status
    estimate: Estimate
    free_mib: int
    margin_mib: int
    mark: Mark
    reasons: tuple[str, ...]
    cautions: tuple[str, ...]
    evidence: tuple[Measurement, ...]
    limit_t_s: float | None
    limit_full_t_s: float | None
    host_short: bool = False

    @property
    def required_mib(self) -> int:
        """What it takes of the GPU's memory, in whole MiB."""
        return -(-self.estimate.parts.total // _MIB)

    @property
    def needed_mib(self) -> int:
        """What must be free in all: over several GPUs more than it takes, for their shares are not alike."""
        return -(-self.estimate.needed // _MIB)

    @property
    def group(self) -> int:
        """0 for a plan to propose, 1 for one that may fail when other programs ask for memory, 2 for one too big."""
        if self.status is Status.TOO_BIG:
            return 2
        tight = self.free_mib - self.needed_mib < self.margin_mib // 2
        return 1 if tight or self.host_short else 0


@dataclass(frozen=True, slots=True)
class Unplanned:
    """What there is no plan for because something is not known; `quant` is None when that is true of all files.

    `remedy` says what to do about it.
    """

    model: str
    quant: str | None
    reason: str
    remedy: str


def source_name(entry: ModelEntry, file: ModelFile) -> str:
    """Return how `estimate` is told of a file: its path, or its address on the hub."""
    if entry.repo is None:
        return file.file
    return f"{entry.repo}{f'@{entry.revision}' if entry.revision else ''}:{file.file}"


def check_wish(wish: Wish) -> None:
    """Raise BadOption for a value that no engine could use."""
    check_limits(context=wish.context, draft=wish.draft, ubatch=wish.ubatch, n_cpu_moe=wish.n_cpu_moe, slots=wish.slots)
    if wish.kv is not None:
        check_kv(wish.kv)


def make_plans(catalogue: Catalogue, situation: Situation, wish: Wish) -> tuple[Plan, ...]:
    """Return plans for `situation`, the one to propose first.

    Raises ModelUnknown for a model or a quantisation that the catalogue has not, and BadOption for a bad setting.
    """
    check_wish(wish)
    plans = [plan for entry in _entries(catalogue, wish) for plan in _plans_of(entry, situation, wish)]
    plans.sort(key=lambda plan: plan.group if wish.intent != "as-published" or plan.group == 2 else 0)
    possible = [plan for plan in plans if plan.status is not Status.TOO_BIG]
    plans = plans if wish.model or not possible else possible
    if plans and wish.quant is None and (why := rank_reason(plans[0], plans[1:])):
        plans[0] = replace(plans[0], reasons=(plans[0].reasons[0], why, *plans[0].reasons[1:]))
    return tuple(plans)


def unplanned(catalogue: Catalogue, situation: Situation, wish: Wish) -> tuple[Unplanned, ...]:
    """Return what `make_plans` would plan if more were known of it, in the same order. Raises what that raises."""
    check_wish(wish)
    found: dict[tuple[str, str | None], Unplanned] = {}
    for entry in _entries(catalogue, wish):
        seeds = _seeds(entry, situation, wish)
        if wish.model and not seeds:
            told = "Write a preset for it: docs/models.md tells how."
            found[entry.id, None] = Unplanned(entry.id, None, part("it has no preset"), told)
        for known, file, _, preset in _files(entry, seeds, wish):
            if lack := _lack(known, file, preset, wish):
                found[entry.id, file.quant] = Unplanned(entry.id, file.quant, *lack)
    return tuple(found.values())


def _entries(catalogue: Catalogue, wish: Wish) -> list[ModelEntry]:
    if wish.model:
        return [_with_projector(catalogue.find(wish.model), wish)]
    having = [each for each in catalogue.models if wish.quant is None or each.file(wish.quant)]
    if not having and wish.quant is not None:
        raise _no_quant("No model has", wish.quant, [file.quant for each in catalogue.models for file in each.files])
    meant = (each for each in having if each.id != _DEMO and (each.projector or not wish.vision))
    return sorted(meant, key=lambda each: each.preference)


def _with_projector(entry: ModelEntry, wish: Wish) -> ModelEntry:
    if wish.vision and entry.projector is None:
        raise BadOption(f"No vision projector of {entry.id} is known.", "Leave --vision out, or take another model.")
    return entry


def _no_quant(owner: str, quant: str, known: Iterable[str]) -> ModelUnknown:
    by_name = {name.casefold(): name for name in known}
    near = [by_name[name] for name in get_close_matches(quant.casefold(), by_name)]
    meant = f"Did you mean {' or '.join(near)}? " if near else ""
    return ModelUnknown(
        f"{owner} {quant}.", f"{meant}`mtp-launcher models ID` lists a model's files.", wanted=quant, near=near
    )


def _files(
    entry: ModelEntry, seeds: Iterable[Preset], wish: Wish
) -> list[tuple[ModelEntry, ModelFile, Weights | None, Preset]]:
    """What is known of the file that each preset is for, or of the one that is wished for.

    Raises ModelUnknown when there is no such file.
    """
    if wish.quant is not None and entry.file(wish.quant) is None:
        raise _no_quant(f"{entry.id} has no", wish.quant, [file.quant for file in entry.files])
    named = [(file, preset) for preset in seeds if (file := entry.file(wish.quant or preset.quant))]
    return [(*known_of(entry, file), preset) for file, preset in named]


def _lack(entry: ModelEntry, file: ModelFile, preset: Preset, wish: Wish) -> tuple[str, str] | None:
    """Return what is not known of a file that a plan needs, and what to do about it; None when all is known."""
    source = shlex.quote(source_name(entry, file))
    estimate_it = (
        f"`mtp-launcher estimate {source}` reads its header."
        if entry.repo
        else f"`mtp-launcher estimate {source}` says what is wrong with it."
    )
    ask_hub = f"`mtp-launcher models {entry.id} --refresh` asks the hub."
    if entry.geometry is None:
        by_checksum = entry.repo and file.sha256 is None and not file.parts
        return part("its shape is unknown"), f"{ask_hub} {estimate_it}" if by_checksum else estimate_it
    if file.size_bytes is None:
        return part("its size is unknown"), ask_hub if entry.repo else estimate_it
    if wish.vision and entry.projector and entry.projector.size_bytes is None:
        state_it = f"State the size_bytes of {entry.projector.file}, or leave --vision out."
        return part("the size of its vision projector is unknown"), ask_hub if entry.repo else state_it
    beside, drafts = _draft_file(entry), preset.draft if wish.draft is None else wish.draft
    if beside and drafts and beside.size_bytes is None:
        state_it = f"State the size_bytes of {beside.file}, or take --no-mtp."
        return part("the size of its draft is unknown"), ask_hub if beside.repo or entry.repo else state_it
    return None


def _draft_file(entry: ModelEntry) -> CompanionFile | None:
    """The draft that is loaded beside a model, where its way to draft needs one."""
    return entry.draft if entry.speculation and SPECULATION[entry.speculation].needs_draft_file else None


def _plans_of(entry: ModelEntry, situation: Situation, wish: Wish) -> list[Plan]:
    """Plans for one model: what keeps its experts where its preset has them first."""
    found: dict[tuple[str, Setting], tuple[bool, Plan]] = {}
    for known, file, weights, preset in _files(entry, _seeds(entry, situation, wish), wish):
        if weights is None or _lack(known, file, preset, wish) or not _can_draft(known, file, wish):
            continue
        setting = _setting(known, file, preset, situation, wish)
        plan = _plan(known, file, weights, setting, preset, situation, wish)
        moved = plan.setting.n_cpu_moe > 0 and not preset.n_cpu_moe
        found.setdefault((file.quant, plan.setting), (moved, plan))
    return [plan for _, plan in sorted(found.values(), key=lambda one: one[0])]


def _can_draft(entry: ModelEntry, file: ModelFile, wish: Wish) -> bool:
    """Whether the drafts that are wished for can be made. Raises ModelHasNoHead when the user has named the model."""
    can = entry.has_head(file) if entry.speculation in ("mtp", None) else True
    if wish.draft and not can and wish.model:
        raise ModelHasNoHead(
            f"{file.quant} of {entry.id} has no MTP head.",
            "Leave --draft out, or take another --quant.",
            file=file.file,
        )
    return can or not wish.draft


def _setting(
    entry: ModelEntry, file: ModelFile, preset: Preset, situation: Situation, wish: Wish | None = None
) -> Setting:
    """The setting of a preset, with what the user has fixed; without what this model or machine has no use for."""
    on_cpu = situation.backend == "cpu"
    headless_file = entry.speculation == "mtp" and not entry.has_head(file)
    setting = Setting(
        context=min(preset.ctx, _CONTEXT_WITHOUT_GPU) if on_cpu else preset.ctx,
        kv=preset.kv,
        draft=0 if headless_file else preset.draft,
        ubatch=preset.ubatch,
        slots=preset.slots,
        n_cpu_moe=preset.n_cpu_moe,
        backend=situation.backend,
        gpus=situation.gpus,
        gpu_free_mib=situation.gpu_free_mib,
    )
    if wish is not None:
        setting = replace(setting, **wish.overrides())  # type: ignore[arg-type]
    geometry, beside = entry.geometry, _draft_file(entry)
    projector = entry.projector if wish is not None and wish.vision else None
    with_experts = 0 if on_cpu or geometry is None or not geometry.experts else geometry.layers + geometry.mtp_layers
    return replace(
        setting,
        n_cpu_moe=min(setting.n_cpu_moe, with_experts),
        mmproj_bytes=(projector.size_bytes or 0) if projector else 0,
        draft_model_bytes=(beside.size_bytes or 0) if beside and setting.draft else 0,
        ngrams=entry.speculation == "ngram-mod",
    )


def _seeds(entry: ModelEntry, situation: Situation, wish: Wish) -> list[Preset]:
    """The presets to start from: those for a GPU of this size, then those for one that has as much free."""
    single = [preset for preset in entry.presets if preset.slots == 1 or wish.slots is not None]
    rows = [preset for preset in single if wish.intent in preset.intents]
    if not rows:
        rows = single if wish.model is not None else []
    sizes = sorted({preset.memory_gb for preset in rows if preset.memory_gb})
    free_like_gb = situation.free_mib / 1_024 * _LIKE_CARD
    chosen: list[Preset] = [preset for preset in rows if preset.memory_gb is None]
    for nominal in (situation.nominal_gb * _OLD_CLASSES, free_like_gb * _OLD_CLASSES):
        size = max((size for size in sizes if size <= nominal), default=sizes[0] if sizes else None)
        chosen += [preset for preset in rows if preset.memory_gb == size]
    kept = [preset for preset in dict.fromkeys(chosen) if _suits(preset, situation)]
    return kept or chosen


def _suits(preset: Preset, situation: Situation) -> bool:
    """Whether a preset's variant and its need of host memory go with the machine."""
    if preset.variant == "headless" and not situation.headless:
        return False
    need, have = preset.host_memory_gb_min, situation.host_mib
    if need is None or have is None:
        return True
    return need <= _LEAST_HOST_GB or have >= need * 1_024 * _AVAILABLE


def _plan(
    entry: ModelEntry,
    file: ModelFile,
    weights: Weights,
    setting: Setting,
    preset: Preset,
    situation: Situation,
    wish: Wish,
) -> Plan:
    geometry, beside, fixed = entry.geometry, draft_of(entry) if setting.draft_model_bytes else None, wish.overrides()
    assert geometry is not None  # noqa: S101 -- the caller has looked

    def measure(candidate: Setting) -> Estimate:
        return estimate(geometry, weights, candidate, beside)

    layers = weights.expert_layers(mtp=setting.draft > 0) if situation.backend != "cpu" else 0
    budgets = [situation.free_mib - situation.margin_mib, situation.free_mib - situation.margin_mib // 2]
    intent = wish.intent if wish.intent in preset.intents else preset.intents[0]
    if intent == "as-published":  # then it is run as it was, or not at all
        fitted = Fitted(setting, measure(setting), ())
    else:
        fitted = fit(setting, budgets, frozenset(fixed), layers, measure)
    evidence = nearest(entry, file.quant, fitted.setting, situation)
    if not _as_preset(_setting(entry, file, preset, situation), fitted.setting):
        preset = replace(preset, mark="derived", note="")
    return Plan(
        entry=entry,
        file=file,
        setting=fitted.setting,
        status=_status(fitted, situation),
        estimate=fitted.estimate,
        free_mib=situation.free_mib,
        margin_mib=situation.margin_mib,
        mark=preset.mark,
        reasons=reasons_for(entry, file, weights, fitted, preset, situation, intent, fixed, measure),
        cautions=cautions_for(entry, file, weights, fitted, situation, evidence, measure),
        evidence=evidence,
        limit_t_s=roofline(geometry, weights, fitted.setting, situation),
        limit_full_t_s=roofline(geometry, weights, fitted.setting, situation, full=True),
        host_short=situation.backend != "cpu"
        and situation.host_mib is not None
        and situation.host_mib < host_need_mib(fitted),
    )


def _as_preset(whole: Setting, found: Setting) -> bool:
    """Whether a preset's setting is left as it was; a few layers' experts more or less are no matter."""
    return replace(found, n_cpu_moe=whole.n_cpu_moe) == whole and bool(found.n_cpu_moe) == bool(whole.n_cpu_moe)


def _status(fitted: Fitted, situation: Situation) -> Status:
    if fitted.needed_mib > situation.free_mib:
        return Status.TOO_BIG
    if fitted.setting.n_cpu_moe:
        return Status.OFFLOADS
    return Status.FITS if fitted.needed_mib + situation.margin_mib <= situation.free_mib else Status.TIGHT
