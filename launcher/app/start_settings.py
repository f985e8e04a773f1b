"""Server settings of a start, resolved in one place for window and command line.

Precedence: what is asked for now, then what the user set for this file the last time, then what a tune of this machine
found best, then what is recommended: the plan for this machine in its current state, from the catalogue or the file's
header.
"""

import asyncio
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field, replace
from enum import Enum
from pathlib import Path
from typing import Any

from launcher.app.machine_presets import PresetMatch, find_preset
from launcher.app.planner import MachineWish, downloaded_file, read_situation
from launcher.base.errors import BadOption, LauncherError, ModelBroken, ModelHasNoHead, ModelMissing
from launcher.base.messages import message
from launcher.base.paths import expand_user
from launcher.engine.arguments import planned_options
from launcher.engine.builds.build import BUILT_IN, EngineBuild
from launcher.engine.demo import DEMO, read_demo_preset, unpack_demo_model
from launcher.engine.serve_options import ServeOptions, fallback_context
from launcher.engine.server.launch import check_model, choose_build, file_bytes
from launcher.engine.server.state import KEPT_REPLACED, NO_HEAD, Notice
from launcher.engine.settings import Settings, change_settings, load_settings
from launcher.models.catalogue import SPECULATION, Catalogue, ModelEntry
from launcher.models.catalogue_load import load_catalogue
from launcher.models.library import find_companion
from launcher.models.locate import ModelSelection, find_named, refuse_damaged, select_file, select_model
from launcher.models.memory import KV_TYPES, PlanSettings
from launcher.models.plan import Plan, PlanCriteria, Status, make_plans
from launcher.models.preset import Intent
from launcher.models.server_settings import ROWS, Value, format_settings, to_fields
from launcher.models.situation import Situation


class Origin(Enum):
    """Origin of a server setting's value, in order of precedence."""

    ASKED = "asked"
    KEPT = "kept"
    TUNED = "tuned"
    RECOMMENDED = "recommended"


@dataclass(frozen=True, slots=True)
class OwnSettings:
    """Own settings for a model's file on this machine: what the user set the last time, and what a tune found.

    `preset` is the tune's, used or not; None where there is none. `applied` are settings that were kept when the tune's
    result was applied: they count as the tune's.
    """

    kept: Settings = field(default_factory=dict)
    tuned: Settings = field(default_factory=dict)
    preset: PresetMatch | None = None
    applied: Settings = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class ResolvedPlan:
    """A plan with the user's own settings for its file.

    `kept` and `tuned` are those that the plan uses. `replaced` are kept ones that no longer fit, for which the plan has
    other values. With `plan` None it is unknown what fits, and the kept settings are used.
    """

    plan: Plan | None
    kept: Settings
    tuned: Settings
    replaced: Settings


@dataclass(frozen=True, slots=True)
class KeptPlan:
    """A plan for a local file, and the same plan with the settings that the user chose the last time.

    `planned` is the plan without them. `mine` has those that fit: `kept` are used, `replaced` no longer fit. It is None
    where none fits. `settings` are those that differ from the plan's, by name, and `planned_settings` the plan's values
    for them. `applied` are those that a tune of this machine also found.
    """

    planned: Plan
    mine: Plan | None
    kept: Settings
    replaced: Settings
    settings: Settings
    planned_settings: Settings
    applied: Settings = field(default_factory=dict)

    def with_kept(self, plan: Plan) -> bool:
        """Return whether `plan` is the one with the user's settings."""
        return plan is self.mine


@dataclass(frozen=True, slots=True)
class Start:
    """A start that is ready to be made: the model as the user named it, and its options.

    `origins` has the origin of each setting that is not left open. `chosen` are the user's own choices among them, to
    keep for the next start (None: what is kept stays as it is), and `set_aside` the kept ones that are not used this
    time. `notices` are for the user.
    """

    named: str
    options: ServeOptions
    plan: Plan | None = None
    origins: Mapping[str, Origin] = field(default_factory=dict)
    chosen: Settings | None = None
    set_aside: Settings = field(default_factory=dict)
    preset: PresetMatch | None = None
    notices: tuple[Notice, ...] = ()

    @property
    def preset_line(self) -> str:
        """Line about the tuned settings for this model. Empty where there are none."""
        return self.preset.line if self.preset else ""

    def settings_from(self, origin: Origin) -> dict[str, Value]:
        """Return the settings from one origin."""
        return {name: ROWS[name].value_in(self.options) for name, its in self.origins.items() if its is origin}


def resolve_plan(catalogue: Catalogue, situation: Situation, wish: PlanCriteria, own: OwnSettings) -> ResolvedPlan:
    """Return the plan for one file of the catalogue with the user's own settings. `wish` is what is asked for now.

    Kept settings that no longer fit are dropped: a single one if that is enough, else all. Where nothing fits they
    stay, and the plan's status is too big. Raises what `make_plans` raises for the wish.
    """
    asked = wish.chosen()
    kept = {name: value for name, value in own.kept.items() if name not in asked}
    tuned = {name: value for name, value in own.tuned.items() if name not in asked and name not in kept}
    least = _first_fitting(make_plans(catalogue, situation, wish))
    if least is None:
        return ResolvedPlan(None, kept, tuned, {})
    whole: Plan | None = None
    for mine in _reduced_choices(kept):
        for found in (tuned, {}) if tuned else ({},):
            plan = _planned(catalogue, situation, wish, {**found, **mine}) if mine or found else least
            whole = whole or plan
            if plan is not None and plan.status is not Status.TOO_BIG and not _overfills_host(plan, mine):
                used = {name: value for name, value in kept.items() if _is_planned(plan.setting, name, value)}
                return ResolvedPlan(plan, used, found, _without(kept, used))
    return ResolvedPlan(whole or least, kept, tuned, {})


def _overfills_host(plan: Plan, kept: Settings) -> bool:
    """Return whether kept limits for host memory would let the engine use more of it than there is."""
    return plan.host_overfull and not {"cache_ram", "ctx_checkpoints"}.isdisjoint(kept)


def _reduced_choices(kept: dict[str, Value]) -> Iterator[dict[str, Value]]:
    """Yield all settings, then all but one in turn, then none."""
    yield kept
    if len(kept) > 1:
        for each in kept:
            yield _without(kept, (each,))
    if kept:
        yield {}


def _planned(catalogue: Catalogue, situation: Situation, wish: PlanCriteria, settings: Settings) -> Plan | None:
    try:
        return _first_fitting(make_plans(catalogue, situation, replace(wish, **to_fields(_countable(settings)))))
    except (BadOption, ModelHasNoHead):  # this file or this program no longer supports them
        return None


def _first_fitting(plans: Sequence[Plan]) -> Plan | None:
    return next((plan for plan in plans if plan.status is not Status.TOO_BIG), next(iter(plans), None))


def _countable(settings: Settings) -> dict[str, Value]:
    """Return settings as plans count them: a fork's KV cache type as f16, which is no smaller."""
    return {name: "f16" if _is_foreign(name, value) else value for name, value in settings.items()}


def _is_foreign(name: str, value: Value) -> bool:
    return name == "kv" and value is not None and value not in KV_TYPES


def _is_planned(setting: PlanSettings, name: str, value: Value) -> bool:
    planned = ROWS[name].value_in(setting)
    capped = name == "n_cpu_moe" and int(value or 0) > int(planned or 0)  # there are no more layers with experts
    return planned == value or capped or _is_foreign(name, value)


def _without(settings: Settings, names: Iterable[str]) -> dict[str, Value]:
    gone = set(names)
    return {name: value for name, value in settings.items() if name not in gone}


async def own_settings(
    options: ServeOptions, *, use_kept: bool = True, use_tuned: bool = True, wake: bool = True
) -> OwnSettings:
    """Return the user's own settings for the model of these options. Without `wake` no GPU is woken.

    A tune does not find the context, so it is never among the tuned settings.
    """
    kept = await asyncio.to_thread(load_settings, options.model) if use_kept else {}
    preset = await find_preset(options, wake=wake)
    if preset is None:
        return OwnSettings(kept)
    tuned = {name: value for name, value in preset.preset.settings.items() if name in ROWS and name != "ctx"}
    verified = preset.preset.verified
    applied = {name: value for name, value in kept.items() if verified and name in tuned and tuned[name] == value}
    used = tuned if preset.used and use_tuned else {}
    return OwnSettings(_without(kept, applied), used, preset if use_tuned else None, applied)


async def apply_own_settings(
    plans: Sequence[Plan],
    catalogue: Catalogue,
    situation: Situation,
    wish: PlanCriteria,
    *,
    use_kept: bool = True,
    use_tuned: bool = True,
) -> tuple[tuple[Plan, ...], tuple[KeptPlan, ...]]:
    """Return the plans with tuned settings, and for local files also the plans with the settings that the user kept.

    Only the first plan of each file changes. Plans for a described computer or as published stay as they are. What the
    wish fixes stays.
    """
    if situation.described or wish.intent == "as-published":
        return tuple(plans), ()
    made: list[Plan] = []
    kept: list[KeptPlan] = []
    seen: set[tuple[str, str]] = set()
    for plan in plans:
        name = (plan.entry.id, plan.file.quant)
        path = downloaded_file(plan) if name not in seen else None
        seen.add(name)
        if path is None:
            made.append(plan)
            continue
        own = await own_settings(ServeOptions(path), use_kept=use_kept, use_tuned=use_tuned, wake=False)
        own = await _without_unusable(own, path)
        its = replace(wish, model=plan.entry.id, quant=plan.file.quant)
        tuned = await asyncio.to_thread(_with_tuned, plan, catalogue, situation, its, own)
        made.append(tuned)
        if own.kept or own.applied:
            kept.append(await asyncio.to_thread(_with_kept, tuned, catalogue, situation, its, own))
    return tuple(made), tuple(kept)


async def plan_for_start(
    subject: ModelSelection, situation: Situation, wish: PlanCriteria | None = None
) -> Plan | None:
    """Return the plan by which a model is started, with the user's own settings as far as they fit.

    None where its memory is unknown. Raises what `make_plans` raises for the wish.
    """
    quant = subject.file.quant if subject.file else None
    wish = replace(wish or PlanCriteria(), model=subject.entry.id, quant=quant)
    plan = _first_fitting(await asyncio.to_thread(make_plans, subject.catalogue, situation, wish))
    if plan is None:
        return None
    (planned,), kept = await apply_own_settings((plan,), subject.catalogue, situation, wish)
    return kept[0].mine or planned if kept else planned


def _with_tuned(plan: Plan, catalogue: Catalogue, situation: Situation, wish: PlanCriteria, own: OwnSettings) -> Plan:
    if own.preset is None:
        return plan
    told = message("Tuned settings: {preset}.", preset=own.preset.line)
    resolved = resolve_plan(catalogue, situation, wish, replace(own, kept={}))
    if own.tuned and (resolved.plan is None or resolved.plan.status is Status.TOO_BIG or not resolved.tuned):
        return plan  # it does not fit
    found = resolved.plan if resolved.tuned and resolved.plan else plan
    return replace(found, reasons=(told, *found.reasons))


def _with_kept(
    plan: Plan, catalogue: Catalogue, situation: Situation, wish: PlanCriteria, own: OwnSettings
) -> KeptPlan:
    own = replace(own, kept=_without(own.kept, wish.chosen()))
    planned = {name: row.value_in(plan.setting) for name, row in ROWS.items()}
    others = {name: value for name, value in own.kept.items() if planned[name] != value}
    resolved = resolve_plan(catalogue, situation, wish, own)
    mine = resolved.plan if resolved.kept and resolved.plan and resolved.plan.status is not Status.TOO_BIG else None
    if mine is not None:
        mine = replace(mine, reasons=(*plan.reasons[:1], *mine.reasons[1:]))
    replaced = resolved.replaced if mine else own.kept
    theirs = {name: planned[name] for name in others}
    return KeptPlan(plan, mine, resolved.kept if mine else {}, replaced, others, theirs, own.applied)


async def resolve_start(
    model: str,
    asked: Settings | None = None,
    options: Callable[[Path], ServeOptions] = ServeOptions,
    *,
    use_kept: bool = True,
    use_tuned: bool = True,
    intent: Intent = "balanced",
    ending: Collection[int] = (),
) -> Start:
    """Return the start of a model as the user names it: a path, ID[:QUANT], OWNER/NAME:FILE, or "demo".

    `asked` are the requested settings. `options` makes the options for the model's file, with everything else such as
    the engine. `ending` are the process ids of engines that it replaces. Where it is unknown what fits (a model without
    a memory formula), the context is `fallback_context`.

    Raises ModelMissing, also for a model that must be downloaded first, ModelUnknown, ModelBroken, ModelUnexpected for
    another model under its name, and BadOption. Other problems of the file, and drafts requested without a head, are
    left to the start, which reports them with possible fixes.
    """
    asked = {name: value for name, value in (asked or {}).items() if value is not None}
    subject, base = await asyncio.to_thread(_subject_of, model, options)
    wanted = change_settings(base, asked)
    try:
        header = await asyncio.to_thread(check_model, wanted if "draft" in asked else replace(wanted, draft=0))
    except LauncherError:
        subject = None
    if subject is None:  # the start reports the file's problem, with possible fixes
        return Start(model, wanted)
    own = await own_settings(base, use_kept=use_kept, use_tuned=use_tuned)
    left_out = {} if use_kept else await asyncio.to_thread(load_settings, base.model)
    build, situation = await _machine_for(base, ending)
    can_draft = header.has_mtp_head or base.draft_file is not None or base.drafts_repeats
    unusable = _unusable(own.kept, build, can_draft=can_draft)
    own = replace(own, kept=_without(own.kept, unusable))
    fixed = dict(asked)
    if not can_draft:  # even if the catalogue or a tune has a draft length
        own = replace(own, tuned=_without(own.tuned, ("draft",)))
        fixed = {"draft": 0, **asked}
    resolved = ResolvedPlan(None, own.kept, own.tuned, {})
    if situation is not None:
        quant = subject.file.quant if subject.file else None
        wish = PlanCriteria(
            model=subject.entry.id,
            quant=quant,
            intent=intent,
            mmproj_bytes=file_bytes(base.mmproj),
            **to_fields(_countable(fixed)),
        )
        resolved = await asyncio.to_thread(resolve_plan, subject.catalogue, situation, wish, own)
    chosen = {**_without(resolved.kept, asked), **asked}
    tuned = _without(resolved.tuned, chosen)
    made = _start_options(base, resolved.plan, {**fixed, **tuned, **chosen}, header.trained_context)
    replaced = _without(resolved.replaced, asked)
    notices = []
    if not can_draft and "draft" not in chosen:
        notices.append(Notice(NO_HEAD, message("{name} has no MTP head, so MTP is off.", name=base.model.name)))
    if unusable:
        notices.append(_unusable_notice(unusable))
    if replaced:
        notices.append(_replaced_notice(replaced, made))
    return Start(
        named=model,
        options=made,
        plan=resolved.plan,
        origins=_origins(made, asked, resolved.kept, tuned),
        chosen=chosen,
        set_aside={**_without(left_out, chosen), **_without(own.applied, chosen), **unusable, **replaced},
        preset=own.preset,
        notices=tuple(notices),
    )


def start_planned(
    model: str,
    setting: PlanSettings,
    *,
    kept: Settings,
    replaced: Settings,
    applied: Settings,
    options: Callable[[Path], ServeOptions],
) -> Start:
    """Return the start of a plan that was shown, with exactly its setting. `kept` are the user's own choices in it.

    Recommended values are no choices, so they are not kept. `replaced` and `applied` are choices that stay kept: those
    that do not fit now, and those that a tune also found. Raises what resolve_start raises for the model.
    """
    _, base = _subject_of(model, options)
    made = _start_options(base, setting, kept, None)
    notices = (_replaced_notice(replaced, made),) if replaced else ()
    return Start(model, made, None, _origins(made, {}, kept, {}), kept, {**applied, **replaced}, None, notices)


def options_for(model: str, options: Callable[[Path], ServeOptions]) -> ServeOptions:
    """Return the options for a model as the user names it, without resolving its settings: see resolve_start.

    The demo has the settings of its preset. A model without an MTP head according to the catalogue is served without
    MTP, or with its separate draft model if that is here. Raises what resolve_start raises for the model.
    """
    _, found = _subject_of(model, options)
    if model == DEMO:
        preset = read_demo_preset()
        found = replace(
            found,
            context=preset.context if found.context is None else found.context,
            threads=preset.threads if found.threads is None else found.threads,
            draft=preset.draft,
        )
    return found


def _subject_of(model: str, options: Callable[[Path], ServeOptions]) -> tuple[ModelSelection | None, ServeOptions]:
    """Return the named model, and the options for its file, including its separate draft model if that is here.

    The first is None for a file that cannot be read.
    """
    if "://" in model:  # as a path it would lose a slash
        raise ModelMissing(
            message("{model} is an address, not a model on this computer.", model=model),
            message("Download it first: `mtp-launcher pull {model}`.", model=model),
            wanted=model,
        )
    catalogue = load_catalogue()
    if model == DEMO:
        entry = catalogue.find(DEMO)
        found = options(unpack_demo_model())
        return ModelSelection(catalogue, entry, entry.files[0], found.model), replace(
            found, alias=DEMO, built_in=found.engine is None
        )
    if find_named(model, catalogue) is None and (expand_user(model).exists() or model.lower().endswith(".gguf")):
        try:
            subject = select_file(expand_user(model), catalogue)
        except (ModelBroken, ModelMissing):  # the start reports it, with possible fixes
            return None, options(expand_user(model))
    else:
        subject = select_model(model, catalogue)
    found = options(subject.local_path)
    if subject.file is not None and not subject.entry.has_head(subject.file):
        found = _with_draft_file(found, subject.entry)
    return subject, found


def _with_draft_file(options: ServeOptions, entry: ModelEntry) -> ServeOptions:
    """Return the options for a model without an MTP head: with its separate draft model, if that is here."""
    way = SPECULATION[entry.speculation] if entry.speculation else None
    if way is not None and way.spec_type.startswith("ngram"):
        return replace(options, spec_type=way.spec_type)
    draft = find_companion(entry, entry.draft) if way and way.needs_draft_file and entry.draft else None
    if draft is None or way is None:
        return replace(options, draft=0)
    refuse_damaged(draft)
    return replace(options, draft_file=draft, spec_type=way.spec_type)


async def _without_unusable(own: OwnSettings, path: Path) -> OwnSettings:
    """Return the settings without a kept KV cache type that the engine lacks.

    The engine is asked only for a fork's type.
    """
    kv = own.kept.get("kv")
    if not _is_foreign("kv", kv):
        return own
    with suppress(LauncherError, OSError):
        build = await choose_build(ServeOptions(path))
        return replace(own, kept=_without(own.kept, _unusable(own.kept, build, can_draft=True)))
    return own


async def _machine_for(options: ServeOptions, ending: Collection[int]) -> tuple[EngineBuild | None, Situation | None]:
    """Return the engine of a start, and the memory that it may use beside this user's other servers.

    None for what is unknown; the start will report the problem.
    """
    build: EngineBuild | None = None
    try:
        build = await choose_build(options)
        on_host = options.no_gpu or build.name == BUILT_IN
        wish = MachineWish(backend="cpu" if on_host else None, wake=not on_host, rpc=options.rpc)
        return build, (await read_situation(wish, build=build)).with_servers_running(ending=ending)
    except (LauncherError, OSError):
        return build, None


def _unusable(kept: Settings, build: EngineBuild | None, *, can_draft: bool) -> dict[str, Value]:
    """Return the kept settings that the file or the engine no longer supports."""
    types = build.kv_types if build else ()
    return {
        name: value
        for name, value in kept.items()
        if (name == "draft" and value and not can_draft) or (name == "kv" and types and value not in types)
    }


def _start_options(
    base: ServeOptions, plan: Plan | PlanSettings | None, settings: Settings, trained: int | None
) -> ServeOptions:
    """Return the options of a start. Limits of host memory are left open, because the launch chooses them anew."""
    setting = plan.setting if isinstance(plan, Plan) else plan
    if setting is None:
        return change_settings(base, {"ctx": fallback_context(trained), **settings})
    open_: dict[str, Any] = {row.attribute: None for row in ROWS.values() if row.resolved and row.name != "ctx"}
    return change_settings(replace(planned_options(setting, base), **open_), settings)


def _origins(made: ServeOptions, asked: Settings, kept: Settings, tuned: Settings) -> dict[str, Origin]:
    by_origin = ((Origin.ASKED, asked), (Origin.KEPT, kept), (Origin.TUNED, tuned))
    return {
        name: next((origin for origin, settings in by_origin if name in settings), Origin.RECOMMENDED)
        for name, row in ROWS.items()
        if row.value_in(made) is not None
    }


def _unusable_notice(unusable: Settings) -> Notice:
    text = message(
        "Your last settings do not work with this file and engine: {settings}.",
        settings=format_settings(unusable),
    )
    return Notice(KEPT_REPLACED, text)


def _replaced_notice(replaced: Settings, made: ServeOptions) -> Notice:
    told = message(
        "Your last settings do not fit into memory now: {settings}. Used instead: {others}.",
        settings=format_settings(replaced),
        others=format_settings({name: ROWS[name].value_in(made) for name in replaced}),
    )
    return Notice(KEPT_REPLACED, told)
