"""Resolves the server settings of a start, in one place for window and command line.

A setting gets its value from the first of these sources that has one: settings asked for now; settings that the user
chose for this file the last time (kept); settings that a tune found best on this machine (tuned); recommended settings,
from the plan for the memory of this machine now.
"""

import asyncio
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field, replace
from enum import Enum
from pathlib import Path
from typing import Any

from launcher.app.planning.planner import MachineDescription, downloaded_file, read_situation
from launcher.app.planning.tuned_match import TunedMatch, find_tuned_match
from launcher.base.errors import BadOption, LauncherError, ModelBroken, ModelHasNoHead, ModelMissing
from launcher.base.messages import as_message, join_messages, message
from launcher.base.paths import expand_user
from launcher.engine.arguments import planned_options
from launcher.engine.builds.build import BUILT_IN, EngineBuild
from launcher.engine.demo import DEMO, read_demo_preset, unpack_demo_model
from launcher.engine.serve_options import DraftFile, ServeOptions, fallback_context
from launcher.engine.server.launch import check_model, choose_build, file_bytes
from launcher.engine.server.start_request import StartRequest
from launcher.engine.server.state import KEPT_REPLACED, NO_HEAD, Notice
from launcher.engine.settings import Settings, change_settings, load_model_settings
from launcher.models.catalogue import Catalogue, CompanionFile, ModelEntry, ModelFile
from launcher.models.catalogue_load import load_catalogue
from launcher.models.drafters import SPEC_TYPES_WITH_FILES, drafter_in, find_drafter, with_usual_length
from launcher.models.evidence import accepted_shares
from launcher.models.library import find_companion, find_entry
from launcher.models.limits import advise_draft
from launcher.models.locate import (
    ModelSelection,
    add_draft,
    download_first,
    find_named,
    find_projector,
    refuse_damaged,
    select_file,
    select_model,
)
from launcher.models.memory import KV_TYPES, PlanSettings
from launcher.models.plan import Plan, PlanCriteria, Status, make_plans
from launcher.models.preset import Intent
from launcher.models.server_settings import DRAFTING, ROWS, Value, format_settings, to_fields
from launcher.models.situation import Situation


class SettingOrigin(Enum):
    """Origin of a server setting's value, in order of precedence."""

    ASKED = "asked"
    KEPT = "kept"
    TUNED = "tuned"
    RECOMMENDED = "recommended"


@dataclass(frozen=True, slots=True)
class OwnSettings:
    """Settings of this machine for a model file: the user's choices of the last time, and those that a tune found.

    `tuned_match` is the tune's result, used or not. `same_as_tuned` are choices of the user that equal those of a
    verified tune; they count as tuned, not as `kept`.
    """

    kept: Settings = field(default_factory=dict)
    tuned: Settings = field(default_factory=dict)
    tuned_match: TunedMatch | None = None
    same_as_tuned: Settings = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class ResolvedPlan:
    """A plan with the own settings of this machine for its file.

    `kept` and `tuned` are the own settings that the plan has. `replaced` are kept settings that no longer fit, so that
    the plan has other values. If `plan` is None, it is unknown what fits, and the kept settings are used.
    """

    plan: Plan | None
    kept: Settings
    tuned: Settings
    replaced: Settings


@dataclass(frozen=True, slots=True)
class KeptPlan:
    """A plan for a local file, and the same plan with the settings that the user chose the last time (kept settings).

    `planned` is the plan without kept settings. `kept_plan` has those that fit (`kept`) but not those that no longer
    fit (`replaced`); it is None if none fits. `settings` are the kept settings that differ from `planned`, and
    `planned_settings` the values of `planned` for the same names. `same_as_tuned` are the user's choices that equal the
    tune's.
    """

    planned: Plan
    kept_plan: Plan | None
    kept: Settings
    replaced: Settings
    settings: Settings
    planned_settings: Settings
    same_as_tuned: Settings = field(default_factory=dict)

    def is_kept_plan(self, plan: Plan) -> bool:
        """Return whether `plan` is the one with the user's settings."""
        return plan is self.kept_plan


@dataclass(frozen=True, slots=True)
class ResolvedStart:
    """A start whose settings are resolved: the model as the user named it, and the options to start it.

    `origins` has the origin of each setting that is not left to the engine. `chosen` are the user's own choices among
    these settings, which are kept for the next start (None: the kept settings stay as they are). `set_aside` are kept
    settings that are not used this time, but stay kept. `notices` are for the user.
    """

    model_name: str
    options: ServeOptions
    plan: Plan | None = None
    origins: Mapping[str, SettingOrigin] = field(default_factory=dict)
    chosen: Settings | None = None
    set_aside: Settings = field(default_factory=dict)
    tuned_match: TunedMatch | None = None
    notices: tuple[Notice, ...] = ()

    @property
    def request(self) -> StartRequest:
        """What a session is asked for this start."""
        return StartRequest(
            self.options,
            chosen=self.chosen,
            set_aside=self.set_aside,
            model_name=self.model_name,
            notices=self.notices,
        )

    @property
    def tuned_line(self) -> str:
        """Line about the tuned settings for this model. Empty where there are none."""
        return self.tuned_match.line if self.tuned_match else ""

    def settings_from(self, origin: SettingOrigin) -> dict[str, Value]:
        """Return the settings from one origin."""
        names = [name for name in self.origins if self.origins[name] is origin]
        return {name: ROWS[name].value_in(self.options) for name in names}


def resolve_plan(catalogue: Catalogue, situation: Situation, criteria: PlanCriteria, own: OwnSettings) -> ResolvedPlan:
    """Return the plan for one file of the catalogue with the own settings. `criteria` has the settings asked for now.

    Kept settings that no longer fit are dropped: a single one if that is enough, else all. If nothing fits, they stay,
    and the plan's status is TOO_BIG. Raises what `make_plans` raises for the criteria.
    """
    asked = criteria.chosen()
    kept = {name: value for name, value in own.kept.items() if name not in asked}
    tuned = {name: value for name, value in own.tuned.items() if name not in asked and name not in kept}
    recommended = _first_fitting(make_plans(catalogue, situation, criteria))
    if recommended is None:
        return ResolvedPlan(None, kept, tuned, {})
    first_tried: Plan | None = None
    for some_kept in _reduce_settings(kept):
        for some_tuned in (tuned, {}) if tuned else ({},):
            settings = {**some_tuned, **some_kept}
            plan = _plan_with_settings(catalogue, situation, criteria, settings) if settings else recommended
            first_tried = first_tried or plan
            if plan is not None and plan.status is not Status.TOO_BIG and not _overfills_host(plan, some_kept):
                # More than `some_kept` may be used: the plan may recommend the value of a dropped setting.
                used = {name: value for name, value in kept.items() if _plan_has_value(plan.setting, name, value)}
                return ResolvedPlan(plan, used, some_tuned, _leave_out(kept, used))
    return ResolvedPlan(first_tried or recommended, kept, tuned, {})


def _overfills_host(plan: Plan, kept: Settings) -> bool:
    """Return whether kept limits for host memory would let the engine use more of it than there is."""
    return plan.host_overfull and not {"cache_ram", "ctx_checkpoints"}.isdisjoint(kept)


def _reduce_settings(kept: dict[str, Value]) -> Iterator[dict[str, Value]]:
    """Yield all settings, then all but one in turn, then none. How to draft is one choice."""
    yield kept
    if len(kept) > 1:
        for each in kept:
            yield _leave_out(kept, DRAFTING if each in DRAFTING else (each,))
    if kept:
        yield {}


def _plan_with_settings(
    catalogue: Catalogue, situation: Situation, criteria: PlanCriteria, settings: Settings
) -> Plan | None:
    try:
        return _first_fitting(
            make_plans(catalogue, situation, replace(criteria, **to_fields(_replace_foreign_kv_type(settings))))
        )
    except (BadOption, ModelHasNoHead):  # this file or this program no longer supports them
        return None


def _first_fitting(plans: Sequence[Plan]) -> Plan | None:
    """Return the first plan that fits, else the first one; None without plans."""
    fitting = [plan for plan in plans if plan.status is not Status.TOO_BIG]
    return next(iter(fitting or plans), None)


def _replace_foreign_kv_type(settings: Settings) -> dict[str, Value]:
    """Return the settings with f16 for a fork's KV cache type: plans do not know it, and it takes no more memory."""
    return {name: "f16" if _is_foreign(name, value) else value for name, value in settings.items()}


def _is_foreign(name: str, value: Value) -> bool:
    """Return whether a setting is a KV cache type that only a fork of llama.cpp has."""
    return name == "kv" and value is not None and value not in KV_TYPES


def _plan_has_value(settings: PlanSettings, name: str, value: Value) -> bool:
    """Return whether a plan's settings have a kept value, or the nearest one that plans can have."""
    planned = ROWS[name].value_in(settings)
    is_capped = name == "n_cpu_moe" and int(value or 0) > int(planned or 0)  # more than the layers with experts
    return planned == value or is_capped or _is_foreign(name, value)


def _leave_out(settings: Settings, names: Collection[str]) -> dict[str, Value]:
    return {name: value for name, value in settings.items() if name not in names}


async def read_own_settings(
    options: ServeOptions, *, use_kept: bool = True, use_tuned: bool = True, wake: bool = True
) -> OwnSettings:
    """Return the own settings of this machine for the model of these options. Without `wake` no GPU is woken.

    A tune does not vary the context, so it is never among the tuned settings.
    """
    kept = await asyncio.to_thread(load_model_settings, options.model) if use_kept else {}
    match = await find_tuned_match(options, wake=wake)
    if match is None:
        return OwnSettings(kept)
    tuned = {name: value for name, value in match.tuned.settings.items() if name in ROWS and name != "ctx"}
    same_as_tuned: dict[str, Value] = {}
    if match.tuned.verified:
        same_as_tuned = {name: value for name, value in kept.items() if name in tuned and tuned[name] == value}
    used = tuned if match.used and use_tuned else {}
    return OwnSettings(_leave_out(kept, same_as_tuned), used, match if use_tuned else None, same_as_tuned)


async def apply_own_settings(
    plans: Sequence[Plan],
    catalogue: Catalogue,
    situation: Situation,
    criteria: PlanCriteria,
    *,
    use_kept: bool = True,
    use_tuned: bool = True,
) -> tuple[tuple[Plan, ...], tuple[KeptPlan, ...]]:
    """Return the plans with the tuned settings of local files, and a KeptPlan for each file with kept settings.

    Only the first plan of each file changes, and no setting that `criteria` fixes. Plans for a described computer or
    with published settings stay as they are.
    """
    if situation.described or criteria.intent == "as-published":
        return tuple(plans), ()
    tuned_plans: list[Plan] = []
    kept_plans: list[KeptPlan] = []
    seen: set[tuple[str, str]] = set()
    for plan in plans:
        name = (plan.entry.id, plan.file.quant)
        path = downloaded_file(plan) if name not in seen else None
        seen.add(name)
        if path is None:
            tuned_plans.append(plan)
            continue
        own = await read_own_settings(ServeOptions(path), use_kept=use_kept, use_tuned=use_tuned, wake=False)
        own = await _drop_foreign_kv_type(own, path)
        if situation.backend != "cpu" and not situation.has_expert_cache:
            without = ("moe_cache_mib",)
            own = replace(own, kept=_leave_out(own.kept, without), tuned=_leave_out(own.tuned, without))
        file_criteria = replace(criteria, model=plan.entry.id, quant=plan.file.quant)
        tuned = await asyncio.to_thread(_apply_tuned, plan, catalogue, situation, file_criteria, own)
        tuned_plans.append(tuned)
        if own.kept or own.same_as_tuned:
            kept_plans.append(await asyncio.to_thread(_apply_kept, tuned, catalogue, situation, file_criteria, own))
    return tuple(tuned_plans), tuple(kept_plans)


async def plan_for_start(
    selection: ModelSelection, situation: Situation, criteria: PlanCriteria | None = None
) -> Plan | None:
    """Return the plan by which a model is started, with the user's own settings as far as they fit.

    Returns None if the model's memory is unknown. Raises what `make_plans` raises for the criteria.
    """
    quant = selection.file.quant if selection.file else None
    criteria = replace(criteria or PlanCriteria(), model=selection.entry.id, quant=quant)
    plan = _first_fitting(await asyncio.to_thread(make_plans, selection.catalogue, situation, criteria))
    if plan is None:
        return None
    (planned,), kept_plans = await apply_own_settings((plan,), selection.catalogue, situation, criteria)
    if kept_plans and kept_plans[0].kept_plan is not None:
        return kept_plans[0].kept_plan
    return planned


def _apply_tuned(
    plan: Plan, catalogue: Catalogue, situation: Situation, criteria: PlanCriteria, own: OwnSettings
) -> Plan:
    if own.tuned_match is None:
        return plan
    reason = message("Tuned settings: {preset}.", preset=own.tuned_match.line)
    resolved = resolve_plan(catalogue, situation, criteria, replace(own, kept={}))
    if own.tuned and (resolved.plan is None or resolved.plan.status is Status.TOO_BIG or not resolved.tuned):
        return plan  # the tuned settings do not fit
    tuned = resolved.plan if resolved.tuned and resolved.plan else plan
    return replace(tuned, reasons=(reason, *tuned.reasons))


def _apply_kept(
    plan: Plan, catalogue: Catalogue, situation: Situation, criteria: PlanCriteria, own: OwnSettings
) -> KeptPlan:
    own = replace(own, kept=_leave_out(own.kept, criteria.chosen()))
    planned = {name: row.value_in(plan.setting) for name, row in ROWS.items()}
    different = {name: value for name, value in own.kept.items() if planned[name] != value}
    resolved = resolve_plan(catalogue, situation, criteria, own)
    fits = resolved.plan is not None and resolved.plan.status is not Status.TOO_BIG
    kept_plan = resolved.plan if resolved.kept and fits else None
    # The first reason is why the plan chose this file; that of the kept plan says only that the user chose it.
    if kept_plan is not None and len(kept_plan.entry.files) > 1:
        kept_plan = replace(kept_plan, reasons=(*plan.reasons[:1], *kept_plan.reasons[1:]))
    return KeptPlan(
        planned=plan,
        kept_plan=kept_plan,
        kept=resolved.kept if kept_plan else {},
        replaced=resolved.replaced if kept_plan else own.kept,
        settings=different,
        planned_settings={name: planned[name] for name in different},
        same_as_tuned=own.same_as_tuned,
    )


async def resolve_start(
    model: str,
    asked: Settings | None = None,
    make_options: Callable[[Path], ServeOptions] = ServeOptions,
    *,
    use_kept: bool = True,
    use_tuned: bool = True,
    intent: Intent = "balanced",
    vision: bool = False,
    ending: Collection[int] = (),
) -> ResolvedStart:
    """Return the start of a model as the user names it: a path, ID[:QUANT], OWNER/NAME:FILE, or "demo".

    `asked` are the settings asked for now. `make_options` returns the options for the model's file, with everything
    that is not a server setting, such as the engine. With `vision`, the model's projector is loaded, too. `ending` are
    the process IDs of engines that the start replaces. If it is unknown what fits (a model without a memory formula),
    the context is `fallback_context`.

    Raises ModelMissing, also for a model or projector that must be downloaded first, ModelUnknown, ModelBroken,
    ModelUnexpected if the file holds another model, and BadOption. Other problems of the file, and drafts asked for
    without a head, are not raised here: the start reports them with possible fixes.
    """
    asked = {name: value for name, value in (asked or {}).items() if value is not None}
    selection, base = await asyncio.to_thread(_select_named_model, model, make_options, asked.get("drafter"))
    if vision and selection is not None:
        base = replace(base, mmproj=await asyncio.to_thread(find_projector, selection))
    if make_options(base.model).draft_file is not None:  # later starts find it among the model's drafts
        asked = {"drafter": base.spec_type, **asked}
    asked = with_usual_length(asked, change_settings(base, asked).drafter_if_on if "drafter" in asked else None)
    asked_options = change_settings(base, asked)
    # Without drafts, because a missing head is no problem unless the user asked for drafts.
    checked_options = asked_options if "draft" in asked else replace(asked_options, draft=0)
    try:
        header = await asyncio.to_thread(check_model, checked_options)
    except LauncherError:
        selection = None
    if selection is None:  # the start reports the file's problem, with possible fixes
        return ResolvedStart(model, asked_options)
    own = await read_own_settings(base, use_kept=use_kept, use_tuned=use_tuned)
    unused_kept = {} if use_kept else await asyncio.to_thread(load_model_settings, base.model)
    build, situation = await _read_engine_and_memory(base, ending)
    lost = {} if "drafter" in asked else _find_lost_drafter(own.kept, base)
    lost_tuned = {} if "drafter" in asked else _find_lost_drafter(own.tuned, base)
    own = replace(own, kept=_leave_out(own.kept, lost), tuned=_leave_out(own.tuned, lost_tuned))
    drafting = change_settings(base, {"drafter": asked.get("drafter", own.kept.get("drafter"))})
    can_draft = drafting.can_draft(head=header.has_mtp_head) and not header.is_embedding
    unusable = {**lost, **_find_unusable(own.kept, build, can_draft=can_draft)}
    unusable_tuned = _find_unusable(own.tuned, build, can_draft=True)
    own = replace(own, kept=_leave_out(own.kept, unusable), tuned=_leave_out(own.tuned, unusable_tuned))
    fixed = dict(asked)
    if not can_draft:  # even if the catalogue or a tune has a draft length
        own = replace(own, tuned=_leave_out(own.tuned, ("draft",)))
        fixed = {"draft": 0, **asked}
    resolved = ResolvedPlan(None, own.kept, own.tuned, {})
    if situation is not None:
        quant = selection.file.quant if selection.file else None
        criteria = PlanCriteria(
            model=selection.entry.id,
            quant=quant,
            intent=intent,
            mmproj_bytes=file_bytes(base.mmproj),
            **to_fields(_replace_foreign_kv_type(fixed)),
        )
        resolved = await asyncio.to_thread(resolve_plan, selection.catalogue, situation, criteria, own)
    chosen = {**_leave_out(resolved.kept, asked), **asked}
    tuned = _leave_out(resolved.tuned, chosen)
    options = _start_options(base, resolved.plan, {**fixed, **tuned, **chosen}, header.trained_context)
    replaced = _leave_out(resolved.replaced, asked)
    notices = []
    if not can_draft and not header.is_embedding and "draft" not in chosen:
        notices.append(Notice(NO_HEAD, message("{name} has no MTP head, so MTP is off.", name=base.model.name)))
    notices += await asyncio.to_thread(_explain_unused, options, lost or lost_tuned, unusable, replaced)
    return ResolvedStart(
        model_name=model,
        options=options,
        plan=resolved.plan,
        origins=_find_origins(options, asked, resolved.kept, tuned),
        chosen=chosen,
        set_aside={**_leave_out(unused_kept, chosen), **_leave_out(own.same_as_tuned, chosen), **unusable, **replaced},
        tuned_match=own.tuned_match,
        notices=tuple(notices),
    )


def start_planned(
    model: str,
    settings: PlanSettings,
    *,
    kept: Settings,
    replaced: Settings,
    same_as_tuned: Settings,
    make_options: Callable[[Path], ServeOptions],
) -> ResolvedStart:
    """Return the start of a plan that the user saw, with exactly its settings.

    `kept` are the user's choices among them; only they are kept for the next start, not the recommended values.
    `replaced` and `same_as_tuned` are choices that stay kept: those that do not fit now, and those that equal the
    tune's. Raises what resolve_start raises for the model.
    """
    _, base = _select_named_model(model, make_options)
    options = _start_options(base, settings, kept, None)
    return ResolvedStart(
        model_name=model,
        options=options,
        origins=_find_origins(options, {}, kept, {}),
        chosen=kept,
        set_aside={**same_as_tuned, **replaced},
        notices=_explain_unused(options, _find_lost_drafter(replaced, base), {}, replaced),
    )


def make_unresolved_options(model: str, make_options: Callable[[Path], ServeOptions]) -> ServeOptions:
    """Return the options for a model as the user names it, without resolving its settings: see resolve_start.

    The demo has the settings of its preset. A model without an MTP head according to the catalogue is served without
    MTP, or with its separate draft model if that is here. Raises what resolve_start raises for the model.
    """
    _, options = _select_named_model(model, make_options)
    if model == DEMO:
        preset = read_demo_preset()
        options = replace(
            options,
            context=preset.context if options.context is None else options.context,
            threads=preset.threads if options.threads is None else options.threads,
            draft=preset.draft,
        )
    return options


def _select_named_model(
    model: str, make_options: Callable[[Path], ServeOptions], drafter: Value = None
) -> tuple[ModelSelection | None, ServeOptions]:
    """Return the named model (None if its file cannot be read) and the options for its file.

    The options include its separate draft model if that is downloaded. `drafter` is what the user asked for.
    """
    if "://" in model:  # a Path would merge the two slashes
        raise ModelMissing(
            message("{model} is an address, not a model on this computer.", model=model),
            download_first(f"mtp-launcher pull {model}"),
            wanted=model,
        )
    catalogue = load_catalogue()
    if model == DEMO:
        entry = catalogue.find(DEMO)
        options = make_options(unpack_demo_model())
        options = replace(options, alias=DEMO, built_in=options.engine is None)
        return ModelSelection(catalogue, entry, entry.files[0], options.model), options
    if find_named(model, catalogue) is None and (expand_user(model).exists() or model.lower().endswith(".gguf")):
        try:
            selection = select_file(expand_user(model), catalogue)
        except (ModelBroken, ModelMissing):  # the start reports it, with possible fixes
            return None, make_options(expand_user(model))
    else:
        selection = select_model(model, catalogue)
    if selection.named is not None and drafter in SPEC_TYPES_WITH_FILES:
        named = replace(selection.named, command=f"{selection.named.command} --drafter {drafter}")
        selection = replace(selection, named=named)
    options = make_options(selection.local_path)
    if selection.stored_name and options.alias is None:  # the file itself may be called by its SHA-256
        options = replace(options, alias=selection.stored_name)
    if options.draft_file is not None:
        selection = add_draft(selection, options.draft_file, str(drafter) if drafter else None)
    if selection.file is not None:
        options = _choose_drafting(options, selection.entry, selection.file)
    return selection, options


def _choose_drafting(options: ServeOptions, entry: ModelEntry, file: ModelFile) -> ServeOptions:
    """Return the options with the drafter of a model's entry, or no drafts, and with the files of other drafters here.

    A head in the model's own file is used unless the user named another drafter's file.
    """
    is_named, found = options.draft_file is not None, _find_drafts(entry)
    uses_own_head = entry.has_head(file) and not is_named
    has_file = entry.draft_file is not None and not uses_own_head
    draft_file = found.pop(entry.all_drafts[0], None) if has_file else None
    options = replace(options, other_drafts=_list_files(found))
    if uses_own_head:
        return options
    if entry.embedding or not entry.drafter.can_draft(head=False, file=draft_file is not None):
        return replace(options, draft=0)
    if draft_file is not None:
        refuse_damaged(draft_file)
        if not is_named and not accepted_shares(entry.drafter, entry.published_as):  # it is never used unasked
            options = replace(options, draft=0)
    return replace(options, draft_file=draft_file, spec_type=entry.drafter.spec_type)


def _find_drafts(entry: ModelEntry) -> dict[CompanionFile, Path]:
    """Return the drafts of a model that are on this computer."""
    return {each: path for each in entry.all_drafts if (path := find_companion(entry, each)) is not None}


def _list_files(found: Mapping[CompanionFile, Path]) -> tuple[DraftFile, ...]:
    return tuple(DraftFile(kind, path) for each, path in found.items() for kind in each.kinds)


def with_drafts_here(options: ServeOptions) -> ServeOptions:
    """Return the options of a start with the drafts that have come to this computer since."""
    try:
        found = _find_drafts(select_file(options.model, load_catalogue()).entry)
    except (LauncherError, OSError):
        return options
    new = [each for each in _list_files(found) if each.kind not in options.draft_files and not options.embeddings]
    return replace(options, other_drafts=(*options.other_drafts, *new)) if new else options


async def _drop_foreign_kv_type(own: OwnSettings, path: Path) -> OwnSettings:
    """Return the settings without a fork's KV cache type if the engine in use does not have it."""
    if not _is_foreign("kv", own.kept.get("kv")):  # usually, and then no engine needs to be probed
        return own
    with suppress(LauncherError, OSError):
        build = await choose_build(ServeOptions(path))
        return replace(own, kept=_leave_out(own.kept, _find_unusable(own.kept, build, can_draft=True)))
    return own


async def _read_engine_and_memory(
    options: ServeOptions, ending: Collection[int]
) -> tuple[EngineBuild | None, Situation | None]:
    """Return the engine of a start, and the memory that it may use while this user's other servers run.

    `ending` are the process IDs of engines that the start replaces. Either result is None if unknown; the start will
    report the problem.
    """
    build: EngineBuild | None = None
    try:
        build = await choose_build(options)
        on_host = options.no_gpu or build.name == BUILT_IN
        description = MachineDescription(backend="cpu" if on_host else None, wake=not on_host, rpc=options.rpc)
        return build, (await read_situation(description, build=build)).with_servers_running(ending=ending)
    except (LauncherError, OSError):
        return build, None


def _find_lost_drafter(settings: Settings, base: ServeOptions) -> dict[str, Value]:
    """Return the drafter in own settings, and its draft length, if its file is no longer there."""
    if change_settings(base, {"drafter": settings.get("drafter")}).can_draft(head=True):
        return {}
    return {name: settings[name] for name in ("drafter", "draft") if settings.get("drafter") and name in settings}


def _find_unusable(kept: Settings, build: EngineBuild | None, *, can_draft: bool) -> dict[str, Value]:
    """Return the kept settings that the file or the engine no longer supports."""
    unusable: dict[str, Value] = {}
    if not can_draft and drafter_in(kept).drafts:
        unusable["draft"] = kept["draft"]
    kv_types = build.kv_types if build else ()
    if "kv" in kept and kv_types and kept["kv"] not in kv_types:
        unusable["kv"] = kept["kv"]
    if build is not None and kept.get("moe_cache_mib") and not build.flags.issuperset(ROWS["moe_cache_mib"].flags):
        unusable["moe_cache_mib"] = kept["moe_cache_mib"]
    for name in ("drafter", "ngram"):
        if build is not None and kept.get(name) and build.spec_types and kept[name] not in build.spec_types:
            unusable[name] = kept[name]
    return unusable


def _start_options(
    base: ServeOptions, plan: Plan | PlanSettings | None, settings: Settings, trained: int | None
) -> ServeOptions:
    """Return the options of a start by a plan or its settings; without one, with the context `fallback_context`.

    Limits of host memory stay None, because the launch chooses them anew.
    """
    setting = plan.setting if isinstance(plan, Plan) else plan
    if setting is None:
        return change_settings(base, {"ctx": fallback_context(trained), **settings})
    unset: dict[str, Any] = {row.attribute: None for row in ROWS.values() if row.resolved and row.name != "ctx"}
    return change_settings(replace(planned_options(setting, base), **unset), settings)


def list_planned_settings(plan: Plan) -> dict[str, Value]:
    """Return the server settings of a start by a plan, by name; None for those that such a start leaves open."""
    options = _start_options(ServeOptions(Path(plan.file.file)), plan, {}, None)
    return {name: row.value_in(options) for name, row in ROWS.items()}


def _find_origins(options: ServeOptions, asked: Settings, kept: Settings, tuned: Settings) -> dict[str, SettingOrigin]:
    """Return the origin of each setting that is not left to the engine."""
    origins = {name: SettingOrigin.RECOMMENDED for name, row in ROWS.items() if row.value_in(options) is not None}
    for origin, settings in ((SettingOrigin.TUNED, tuned), (SettingOrigin.KEPT, kept), (SettingOrigin.ASKED, asked)):
        origins |= dict.fromkeys(origins.keys() & settings.keys(), origin)
    return origins


def _explain_unused(
    options: ServeOptions, lost: Settings, unusable: Settings, replaced: Settings
) -> tuple[Notice, ...]:
    """Return notices on own settings that are not used: `lost` with a draft's file, `unusable`, or too large."""
    texts, unusable, replaced = [], _leave_out(unusable, lost), _leave_out(replaced, lost)
    if lost:
        drafter = find_drafter(str(lost["drafter"]))
        gone = message("The file of {drafter} is gone, so it is not used as before.", drafter=as_message(drafter.title))
        texts.append(join_messages(gone, advise_draft(drafter, find_entry(load_catalogue(), options.model))))
    if unusable:
        shown = format_settings(unusable)
        texts.append(message("Your last settings do not work with this file and engine: {settings}.", settings=shown))
    if replaced:
        fits = message(
            "Your last settings do not fit into memory now: {settings}. Used instead: {others}.",
            settings=format_settings(replaced),
            others=format_settings({name: ROWS[name].value_in(options) for name in replaced}),
        )
        texts.append(fits)
    return tuple(Notice(KEPT_REPLACED, text) for text in texts)
