"""Previews changed server settings: memory and effects, before they are applied. Quick enough for a slider."""

import asyncio
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any, ClassVar

from launcher.app.planning.planner import MachineDescription, read_situation
from launcher.app.planning.start_settings import list_missing_drafts, with_drafts_here
from launcher.base.codec import JsonView
from launcher.base.errors import GeometryUnknown, GpuAsleep, LauncherError
from launcher.base.messages import Message, as_message, fill_template, mark, message, plural_message
from launcher.engine.builds.build import BUILT_IN
from launcher.engine.builds.slot_files import SlotFiles, known_slot_files
from launcher.engine.engine_estimate import backend_of_log
from launcher.engine.serve_options import ServeOptions
from launcher.engine.server.launch import Launch, read_draft_file
from launcher.engine.server.load_times import LoadTime, expected_load_time
from launcher.engine.server.own_memory import RunningEngine
from launcher.engine.settings import change_settings, join_extra
from launcher.models.compute_buffers import Backend
from launcher.models.drafters import (
    SPEC_TYPES,
    DraftChoice,
    Drafter,
    as_choice,
    list_choices,
    usable_drafters,
)
from launcher.models.fitting import HOST_LIMITS, choose_host_limits
from launcher.models.geometry import Geometry, read_geometry
from launcher.models.limits import no_head_error, training_warning
from launcher.models.memory import KV_TYPES, DraftModel, MemoryEstimate, PlanSettings, estimate_memory
from launcher.models.plan import Status, fit_status
from launcher.models.server_settings import DRAFTING, ROWS, Value, to_fields
from launcher.models.situation import Situation
from launcher.models.weights import Weights, read_weights

# Sentences about the consequences of a changed setting.

_MINUS = "\N{MINUS SIGN}"
_STEP_TEMPLATES = {
    "ctx": (mark("{cost} for {step:,} more tokens of context"), mark("{cost} for {step:,} fewer tokens of context")),
    "ubatch": (mark("{cost} with a ubatch of {new:,} tokens"),) * 2,
    "slots": (mark("{cost} with {new} slots"), mark("{cost} with {new} slots")),
    "n_cpu_moe": (mark("{cost} with the experts of {new} layers on the CPU"),) * 2,
}
"""Templates by setting: for a larger and for a smaller value."""


def signed_mib(mib: int | None) -> str:
    """Return a difference of memory, such as "+63 MiB". An en dash where it is unknown."""
    if mib is None:
        return "\N{EN DASH} MiB"
    return f"{_MINUS if mib < 0 else '+'}{abs(mib):,} MiB"


def consequence_sentence(name: str, old: Value, new: Value, mib: int | None) -> Message:
    """Return one sentence on changing only the setting `name`, which costs `mib` (None: unknown)."""
    if name == "extra":
        return message("extra arguments are not in the estimate")
    if name == "threads":
        if new is None:
            return message("llama.cpp chooses the number of CPU threads")
        return plural_message("{n} CPU thread, same memory", "{n} CPU threads, same memory", int(new))
    values: dict[str, object] = {"cost": signed_mib(mib), "new": new}
    if name not in ("kv", "draft", *_STEP_TEMPLATES):
        row = ROWS[name]
        values |= {"setting": as_message(row.label or row.spelling), "new": row.format_value(new)}
        if row.memory:
            return fill_template(mark("{cost} with {setting} {new}"), values)
        return fill_template(mark("{setting} {new}, same GPU memory"), values)
    if name == "kv" or not (isinstance(old, int) and isinstance(new, int)):
        return fill_template(mark("{cost} with a KV cache of {new}"), values)
    step = new - old
    text = _draft_template(old, new) if name == "draft" else _STEP_TEMPLATES[name][step < 0]
    if name == "slots" and new == 1:
        text = mark("{cost} with one slot")
    if name == "n_cpu_moe" and new < 2:
        text = (
            mark("{cost} with the experts of one layer on the CPU")
            if new
            else mark("{cost} with no experts on the CPU")
        )
    return fill_template(text, values | {"step": abs(step)})


def _draft_template(old: int, new: int) -> str:
    if not new:
        return mark("{cost} with MTP off")
    if abs(new - old) == 1:
        return mark("{cost} for 1 more draft token") if new > old else mark("{cost} for 1 fewer draft token")
    return mark("{cost} for {step} more draft tokens") if new > old else mark("{cost} for {step} fewer draft tokens")


def list_warnings(settings: PlanSettings, trained_context: int | None, *, has_extra: bool) -> tuple[str, ...]:
    """Return warnings about settings, except about their memory.

    `has_extra` is True if the warning shall say that no estimate knows the memory of extra arguments.
    """
    warnings: list[str] = []
    if sentence := training_warning(trained_context, settings.slot_context):
        warnings.append(sentence)
    if settings.streams > 1:
        values = {"slots": settings.slots, "each": settings.slot_context}
        warnings.append(fill_template(mark("Each of the {slots} slots has {each:,} tokens of context."), values))
    if has_extra:
        warnings.append(
            message("Your extra arguments are not in the estimate: the server may use more or less memory.")
        )
    return tuple(warnings)


_MIB = 2**20
LEAST_CONTEXT = 1_024
LONGEST_DRAFT = 8
"""The largest draft length on a slider: longer drafts paid off in no published measurement."""
APPLIES_NOW = ("temperature", "top_k", "top_p", "min_p", "max_tokens", "thinking")
"""Settings sent with each request, so that they apply from the next reply on. All others need an engine start."""


@dataclass(frozen=True, slots=True)
class PreviewBasis:
    """Facts about a server as it runs or would run. Memory in MiB.

    `plan_settings` are the settings of its memory estimate. `geometry` and `weights` are None if the model has no
    memory formula; `unknown` is then the reason. `memory_name` is the memory that holds the model: the name of a GPU,
    or "host memory". Of its `total_mib`, the server may use `available_mib`: what is free, and what the server itself
    uses. `others_mib` is used by other programs, `other_servers_mib` by our other servers, which keep running.
    `situation` is this machine's memory beside those, `read_at` the Unix time of reading it; None if it was not read.
    `own_measured` is True if the server's own memory was measured, not estimated. `draft_models` are the files with
    which it may draft, by their kind. `drafters` are those that the model can use. `expert_layers` is the number of
    layers whose experts can be moved to the host. `unsupported` are the settings that the engine does not have.
    `slot_files` is what its slot files hold, None if that was not tested. `missing_drafts` are the drafters whose files
    for the model the catalogue knows, and which are not here, of those that the engine has.
    """

    options: ServeOptions
    plan_settings: PlanSettings
    geometry: Geometry | None
    weights: Weights | None
    unknown: str = ""
    draft_models: Mapping[str, DraftModel | None] = field(default_factory=dict)
    trained_context: int | None = None
    drafters: tuple[str, ...] = SPEC_TYPES
    expert_layers: int = 0
    kv_types: tuple[str, ...] = ("f16",)
    memory_name: str = ""
    total_mib: int = 0
    others_mib: int = 0
    other_servers_mib: int = 0
    available_mib: int = 0
    situation: Situation | None = None
    margin_mib: int = 0
    own_measured: bool = False
    load: LoadTime | None = None
    notes: tuple[str, ...] = ()
    read_at: float | None = None
    unsupported: frozenset[str] = frozenset()
    slot_files: SlotFiles | None = None
    missing_drafts: tuple[Drafter, ...] = ()

    def slider_values(self, name: str) -> tuple[Value, ...]:
        """Return the values of a slider for the setting `name`, in order. Empty if it has no slider."""
        row, current = ROWS[name], ROWS[name].effective_in(self.plan_settings)
        if name in self.unsupported or (row.of_experts and not self.expert_layers):
            return (current,)
        match name:
            case "ctx":
                return self.contexts
            case "drafter":
                return self.drafters
            case "kv":
                return self.kv_types
            case "n_cpu_moe":
                return tuple(range(self.expert_layers + 1))
            case _ if row.steps and isinstance(current, int):
                return tuple(sorted({*row.steps, current}))
            case _:
                return tuple(sorted(row.steps))

    @property
    def draft_choices(self) -> tuple[DraftChoice, ...]:
        """What a slider of ways to draft offers: the model's own drafter, those with files here, then repeats."""
        settings, names = self.plan_settings, sorted(self.drafters, key=lambda each: each != self.options.spec_type)
        rows = [replace(settings, chosen_drafter=each).drafter_if_on for each in names]
        offered = [row for row in rows if row.source != "text" or row.tried or row is settings.drafter]
        return list_choices(offered, range(1, max(LONGEST_DRAFT, settings.draft) + 1))

    @property
    def draft_choice(self) -> DraftChoice:
        """How it drafts."""
        return as_choice(self.plan_settings.drafter, self.plan_settings.draft)

    @property
    def can_draft(self) -> bool:
        """Whether the model can use the drafter that is chosen now."""
        return self.plan_settings.drafter_if_on.spec_type in self.drafters

    @property
    def contexts(self) -> tuple[int, ...]:
        """Contexts to choose from, in tokens: 1024, 1536, 2048, 3072, ..., the trained and the current context."""
        longest = self.trained_context or max(self.plan_settings.context, 2**17)
        contexts = {longest, self.plan_settings.context}
        power = LEAST_CONTEXT
        while power < longest:
            contexts |= {each for each in (power, power * 3 // 2) if each < longest}
            power *= 2
        return tuple(sorted(contexts))


@dataclass(frozen=True, slots=True)
class SettingChange:
    """One changed setting: old and new value, and its cost alone in MiB (None: unknown); that of DRAFTING together."""

    name: str
    old: Value
    new: Value
    needs_restart: bool
    mib: int | None
    consequence: Message


@dataclass(frozen=True, slots=True)
class Preview:
    """A server with changed settings. `estimate` and its figures are None if the model has no memory formula.

    `plan_settings` are the settings of the estimate. `difference_mib` is how much more memory the server needs than
    before the changes. `largest_context` is the longest context in tokens that fits with these settings, None if none
    does.
    """

    JSON_VIEW: ClassVar[JsonView] = JsonView(
        "changes needs_restart restart_s:1 restart_measured=loads status unknown=basis.unknown? parts=parts_mib:1 "
        "needed_mib difference_mib missing_mib place=basis.memory_name total_mib=basis.total_mib "
        "others_mib=basis.others_mib other_servers_mib=basis.other_servers_mib available_mib=basis.available_mib "
        "margin_mib=basis.margin_mib own_measured=basis.own_measured read_at=basis.read_at:1 largest_context warnings "
        "notes=basis.notes"
    )
    basis: PreviewBasis
    plan_settings: PlanSettings
    changes: tuple[SettingChange, ...]
    estimate: MemoryEstimate | None
    difference_mib: int | None
    largest_context: int | None
    warnings: tuple[str, ...]

    @property
    def change_count(self) -> int:
        """The number of changes; a drafter and its length are one."""
        return len({DRAFTING if change.name in DRAFTING else change.name for change in self.changes})

    @property
    def needs_restart(self) -> bool:
        """True if any change needs an engine start."""
        return any(change.needs_restart for change in self.changes)

    @property
    def needed_mib(self) -> int | None:
        """Memory that must be free for it, in MiB."""
        return None if self.estimate is None else self.estimate.needed_mib

    @property
    def missing_mib(self) -> int | None:
        """Memory in MiB that is not available, 0 if it fits."""
        return None if self.needed_mib is None else max(0, self.needed_mib - self.basis.available_mib)

    @property
    def status(self) -> Status | None:
        """Whether it fits, in the terms of plans. None if that is unknown."""
        needed, basis = self.needed_mib, self.basis
        return None if needed is None else fit_status(needed, self.plan_settings, basis.available_mib, basis.margin_mib)

    @property
    def restart_s(self) -> float | None:
        """Seconds of a restart, from measurements here with this model and engine. None while unknown."""
        return self.basis.load.seconds if self.basis.load else None

    @property
    def loads(self) -> int:
        """The number of starts from which the time of a restart is known."""
        return self.basis.load.loads if self.basis.load else 0

    @property
    def parts_mib(self) -> dict[str, float] | None:
        """The parts of the memory in MiB."""
        return None if self.estimate is None else {n: size / _MIB for n, size in self.estimate.parts.as_dict().items()}


class Previewer:
    """Makes previews from one basis. Estimates are cached, because a slider needs the same ones again and again."""

    def __init__(self, basis: PreviewBasis) -> None:
        self.basis = basis
        self._estimates: dict[PlanSettings, MemoryEstimate] = {}
        self._largest_contexts: dict[PlanSettings, int | None] = {}

    def with_basis(self, basis: PreviewBasis) -> "Previewer":
        """Return a previewer for a new reading of the machine's memory, with the cached estimates if they apply."""
        previewer = Previewer(basis)
        old = self.basis
        if (old.geometry, old.weights, old.draft_models) == (basis.geometry, basis.weights, basis.draft_models):
            previewer._estimates = self._estimates
        return previewer

    def fill_cache(self) -> Iterator[Preview]:
        """Yield a preview for each value of each slider, to fill the cache: a new estimate takes 10 ms.

        Contexts come last.
        """
        for name in sorted(ROWS, key=lambda name: name == "ctx"):
            for value in self.basis.slider_values(name):
                yield self.preview({name: value})
            if name == "draft":
                own = self.basis.options.spec_type
                yield from (self.preview(each.as_settings(own)) for each in self.basis.draft_choices)

    def preview(self, changes: Mapping[str, Value]) -> Preview:
        """Return the server with `changes` applied. Changes without effect are left out.

        Raises BadOption for a value that no engine could use, ModelHasNoHead for drafts of a model without a head.
        """
        basis = self.basis
        request_changes = {name: value for name, value in changes.items() if name in APPLIES_NOW}
        server_changes = {name: value for name, value in changes.items() if name not in APPLIES_NOW}
        options = change_settings(basis.options, server_changes)
        settings = self._make_plan_settings(options)
        if settings.drafter.drafts and settings.drafter.spec_type not in basis.drafters:
            raise no_head_error(basis.options.model.name, settings.drafter)
        before, after = self._estimate_memory(basis.plan_settings), self._estimate_memory(settings)
        described = [change for name in server_changes if (change := self._describe_change(name, options))]
        for name, value in request_changes.items():
            described.append(SettingChange(name, None, value, False, 0, message("applies to the next reply")))
        # Changed extra arguments need no warning: the sentence about the change says the same.
        unchanged_extra = bool(options.extra) and options.extra == basis.options.extra
        return Preview(
            basis=basis,
            plan_settings=settings,
            changes=tuple(described),
            estimate=after,
            difference_mib=_difference_mib(before, after),
            largest_context=self._largest_context(settings),
            warnings=list_warnings(settings, basis.trained_context, has_extra=unchanged_extra),
        )

    def _estimate_memory(self, settings: PlanSettings) -> MemoryEstimate | None:
        basis = self.basis
        if basis.geometry is None or basis.weights is None:
            return None
        estimate = self._estimates.get(settings)
        if estimate is None:
            estimate = self._estimates[settings] = estimate_memory(
                basis.geometry, basis.weights, settings, self._find_draft_model(settings)
            )
        return estimate

    def _find_draft_model(self, settings: PlanSettings) -> DraftModel | None:
        kinds = settings.drafter.files
        return next((model for kind, model in self.basis.draft_models.items() if kind in kinds), None)

    def _largest_context(self, settings: PlanSettings) -> int | None:
        """Return the longest context that fits with these settings and the margin. None if none does."""
        key = replace(settings, context=0)
        if key not in self._largest_contexts:
            self._largest_contexts[key] = self._search_largest_context(settings)
        return self._largest_contexts[key]

    def _search_largest_context(self, settings: PlanSettings) -> int | None:
        room = (self.basis.available_mib - self.basis.margin_mib) * _MIB
        contexts = self.basis.contexts
        longest = self._estimate_memory(replace(settings, context=contexts[-1]))
        if longest is None:
            return None
        if longest.needed_bytes <= room:  # the usual case needs no search
            return contexts[-1]
        low, high = 0, len(contexts)
        while low < high:
            middle = (low + high) // 2
            estimate = self._estimate_memory(replace(settings, context=contexts[middle]))
            if estimate is not None and estimate.needed_bytes <= room:
                low = middle + 1
            else:
                high = middle
        return contexts[low - 1] if low else None

    def _make_plan_settings(self, options: ServeOptions) -> PlanSettings:
        """Return the plan settings that a start with `options` would have."""
        running, values, resets_limits = self.basis.plan_settings, dict[str, Any](), False
        for row in ROWS.values():
            value = row.value_in(options)
            if value is None and row.name in HOST_LIMITS and row.value_in(self.basis.options) is not None:
                # The user has removed an own limit, so the start chooses it again.
                resets_limits = True
            elif value is None:
                value = row.value_in(running) if row.resolved else row.usual
            values[row.attribute] = value
        settings = replace(running, **values)
        return replace(settings, **self._choose_limits(settings)) if resets_limits else settings

    def _choose_limits(self, settings: PlanSettings) -> dict[str, Any]:
        """Return the limits of host memory that a start would choose."""
        estimate, situation = self._estimate_memory(settings), self.basis.situation
        if estimate is None or situation is None:
            return {}
        host_mib = situation.host_beside_mib(estimate.required_mib)
        return {} if host_mib is None else to_fields(choose_host_limits(estimate, host_mib))

    def _describe_change(self, name: str, options: ServeOptions) -> SettingChange | None:
        """Return the change of one setting with its cost alone, None if it stays the same."""
        basis = self.basis
        old = _effective_value(name, basis.options, basis.plan_settings)
        new = _effective_value(name, options, self._make_plan_settings(options))
        if old == new:
            return None
        mib = None
        if name in ROWS and ROWS[name].memory:
            # How to draft is one choice: a length alone would be that of another drafter.
            changed = {each: ROWS[each].value_in(options) for each in DRAFTING} if name in DRAFTING else {name: new}
            alone = self._make_plan_settings(change_settings(basis.options, changed))
            mib = _difference_mib(self._estimate_memory(basis.plan_settings), self._estimate_memory(alone))
            if name in DRAFTING and alone.drafter.drafts and alone.drafter is not basis.plan_settings.drafter:
                drafts = alone.drafter.describe(alone.draft, mode=True)
                sentence = message("{cost} with {drafts}", cost=signed_mib(mib), drafts=drafts)
                return SettingChange(name, old, new, True, mib, sentence)
        return SettingChange(name, old, new, True, mib, consequence_sentence(name, old, new, mib))


def _effective_value(name: str, options: ServeOptions, settings: PlanSettings) -> Value:
    if name not in ROWS:
        return join_extra(options.extra) or None
    row = ROWS[name]
    value: Value = row.effective_in(settings if row.memory or row.resolved else options)
    return value


def _difference_mib(before: MemoryEstimate | None, after: MemoryEstimate | None) -> int | None:
    """Return how many MiB more `after` needs, as the difference of the two rounded figures that users see."""
    return None if before is None or after is None else after.needed_mib - before.needed_mib


# Basis of a preview: the running server or a prepared command, and this machine's current memory.


async def read_basis(launch: Launch, *, engine_pid: int | None = None, log: Sequence[str] = ()) -> PreviewBasis:
    """Return the basis for a server that runs as `engine_pid`, or for one that does not run yet.

    The engine's `log` names the backend that holds the model. A sleeping GPU is not woken, so its memory is unknown.
    """
    launch = replace(launch, options=await asyncio.to_thread(with_drafts_here, launch.options))
    backend: Backend | None = "cpu" if launch.build.name == BUILT_IN else None
    if backend is None and log:
        backend = backend_of_log(log)
    also = () if engine_pid is None else (RunningEngine.from_launch(launch, engine_pid),)
    try:
        situation = await read_situation(MachineDescription(backend=backend), also=also, build=launch.build)
    except GpuAsleep as error:
        return replace(await asyncio.to_thread(_make_basis, launch, None, engine_pid), notes=(error.title,))
    except LauncherError:  # no driver here supports the backend that the log names
        situation = await read_situation(MachineDescription(), also=also, build=launch.build)
    return await asyncio.to_thread(_make_basis, launch, situation, engine_pid)


def _make_basis(launch: Launch, situation: Situation | None, engine_pid: int | None) -> PreviewBasis:
    """Return the basis, without the machine's memory if `situation` is None."""
    options, header = launch.options, launch.header
    drafters = usable_drafters(head=header.has_mtp_head, files=options.draft_files)
    offered = launch.build.spec_types or drafters
    backend: Backend = situation.backend if situation else "cuda"
    geometry: Geometry | None = None
    weights: Weights | None = None
    unknown = ""
    try:
        geometry = read_geometry(header)
        weights = read_weights(header, geometry)
    except GeometryUnknown as error:
        geometry, unknown = None, error.title
    settings = launch.plan_settings(backend)
    unsupported = frozenset(name for name, row in ROWS.items() if not set(row.flags) <= launch.build.flags)
    kv_types = tuple(kind for kind in KV_TYPES if kind in launch.build.kv_types) or tuple(KV_TYPES)
    basis = PreviewBasis(
        options=options,
        plan_settings=settings,
        geometry=geometry,
        weights=weights,
        unknown=unknown,
        draft_models={each.kind: read_draft_file(each.path) for each in options.all_drafts},
        trained_context=header.trained_context,
        drafters=() if header.is_embedding else tuple(each for each in drafters if each in offered),
        expert_layers=weights.expert_layers(mtp=settings.drafter.uses_head) if weights and backend != "cpu" else 0,
        kv_types=kv_types,
        load=expected_load_time(launch),
        unsupported=unsupported,
        slot_files=known_slot_files(launch.build),
        missing_drafts=list_missing_drafts(options, launch.build.spec_types),
    )
    return _with_memory(basis, situation, engine_pid) if situation else basis


def _with_memory(basis: PreviewBasis, situation: Situation, engine_pid: int | None) -> PreviewBasis:
    """Return the basis with the machine's memory. What the server itself uses counts as available."""
    own = next((each for each in situation.own if each.engine_pid == engine_pid), None)
    with_others = situation.with_servers_running(ending=() if engine_pid is None else (engine_pid,))
    total = round(situation.nominal_gb * 1_024)
    available = min(total, with_others.free_mib)
    other_servers = min(sum(each.mib for each in with_others.own), total - available)
    return replace(
        basis,
        plan_settings=replace(basis.plan_settings, **with_others.memory_fields),
        memory_name=situation.gpu_name if situation.gpu_name and situation.backend != "cpu" else "host memory",
        total_mib=total,
        others_mib=total - available - other_servers,
        other_servers_mib=other_servers,
        available_mib=available,
        situation=with_others,
        margin_mib=situation.margin_mib,
        own_measured=own is not None and own.measured and own.by_device is not None,
        notes=situation.notes,
        read_at=situation.read_at,
    )
