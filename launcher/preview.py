"""What other settings of a server would cost and do, before they are applied: pure, and quick enough for a slider."""

from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass, replace

from launcher.base.errors import ModelHasNoHead
from launcher.base.words import mark
from launcher.engine.arguments import USUAL_KV, USUAL_UBATCH
from launcher.engine.extra import join_extra
from launcher.engine.launch import ServeOptions
from launcher.engine.load_times import LoadTime
from launcher.engine.settings import Value, with_settings
from launcher.models.geometry import Geometry
from launcher.models.memory import DraftModel, Estimate, Setting, estimate
from launcher.models.plan import Status
from launcher.models.weights import Weights
from launcher.preview_words import Told, consequence, warnings_on

_MIB = 2**20
LEAST_CONTEXT = 1_024
LONGEST_DRAFT = 8
"""More drafts than this paid in no published measurement."""
UBATCHES = (64, 128, 256, 512, 1_024, 2_048, 4_096)
SLOTS = (1, 2, 3, 4, 6, 8, 12, 16)
APPLIES_NOW = ("temperature", "top_k", "top_p", "min_p", "max_tokens", "thinking")
"""What goes with each request: it holds from the next reply on. All else is read by the engine when it starts."""


@dataclass(frozen=True, slots=True)
class Basis:
    """What is known of a server as it runs, or would run; memory in MiB.

    `geometry` and `weights` are None where no formula knows the model; `unknown` then says why. `available_mib` is what
    the server may take: what is free now and what it has itself. `others_mib` is what other programs have.
    `own_measured` is whether its own share was measured, else it is estimated. `draft_bytes` is the size of a draft in
    a file of its own. `expert_layers` is 0 where no experts can be moved. `place` names the memory: a GPU's or the
    host's.
    """

    options: ServeOptions
    setting: Setting
    geometry: Geometry | None
    weights: Weights | None
    unknown: str = ""
    draft_model: DraftModel | None = None
    draft_bytes: int = 0
    trained_context: int | None = None
    can_draft: bool = True
    expert_layers: int = 0
    kv_types: tuple[str, ...] = (USUAL_KV,)
    place: str = ""
    total_mib: int = 0
    others_mib: int = 0
    available_mib: int = 0
    margin_mib: int = 0
    own_measured: bool = False
    load: LoadTime | None = None
    notes: tuple[str, ...] = ()

    @property
    def contexts(self) -> tuple[int, ...]:
        """The contexts to choose from, in tokens: powers of two, half-way steps, the trained length, what is set."""
        most = self.trained_context or max(self.setting.context, 2**17)
        steps = {most, self.setting.context}
        step = LEAST_CONTEXT
        while step < most:
            steps |= {step, step * 3 // 2} if step * 3 // 2 < most else {step}
            step *= 2
        return tuple(sorted(steps))


@dataclass(frozen=True, slots=True)
class Change:
    """One setting that differs: what it was and will be, what that alone costs in MiB (None: not known)."""

    name: str
    old: Value
    new: Value
    needs_restart: bool
    mib: int | None
    consequence: Told

    def as_json(self) -> dict[str, object]:
        """Return it for programs."""
        return {
            "name": self.name,
            "old": self.old,
            "new": self.new,
            "needs_restart": self.needs_restart,
            "mib": self.mib,
            "consequence": str(self.consequence),
        }


@dataclass(frozen=True, slots=True)
class Preview:
    """What a server would be with changed settings. `estimate` and what follows from it are None while no formula
    knows the model."""

    basis: Basis
    setting: Setting
    changes: tuple[Change, ...]
    estimate: Estimate | None
    difference_mib: int | None
    largest_context: int | None
    warnings: tuple[Told, ...]

    @property
    def needs_restart(self) -> bool:
        """Whether any of the changes is read by the engine only when it starts."""
        return any(change.needs_restart for change in self.changes)

    @property
    def needed_mib(self) -> int | None:
        """What must be free for it."""
        return None if self.estimate is None else _needed_mib(self.estimate)

    @property
    def missing_mib(self) -> int | None:
        """How much more it needs than there is; 0 when it has enough."""
        return None if self.needed_mib is None else max(0, self.needed_mib - self.basis.available_mib)

    @property
    def status(self) -> Status | None:
        """Whether it fits, as for plans."""
        needed, basis = self.needed_mib, self.basis
        if needed is None:
            return None
        if needed > basis.available_mib:
            return Status.TOO_BIG
        if self.setting.n_cpu_moe:
            return Status.OFFLOADS
        return Status.FITS if needed + basis.margin_mib <= basis.available_mib else Status.TIGHT

    @property
    def restart_s(self) -> float | None:
        """How long a restart takes, as was measured here with this model and engine; None while that is unknown."""
        return self.basis.load.seconds if self.basis.load else None

    def as_json(self) -> dict[str, object]:
        """Return it for programs."""
        basis, found = self.basis, self.estimate
        return {
            "changes": [change.as_json() for change in self.changes],
            "needs_restart": self.needs_restart,
            "restart_s": None if self.restart_s is None else round(self.restart_s, 1),
            "restart_measured": basis.load.measured if basis.load else 0,
            "status": self.status.value if self.status else None,
            "unknown": basis.unknown or None,
            "parts": {name: round(size / _MIB, 1) for name, size in found.parts.as_dict().items()} if found else None,
            "needed_mib": self.needed_mib,
            "difference_mib": self.difference_mib,
            "missing_mib": self.missing_mib,
            "place": basis.place,
            "total_mib": basis.total_mib,
            "others_mib": basis.others_mib,
            "available_mib": basis.available_mib,
            "margin_mib": basis.margin_mib,
            "own_measured": basis.own_measured,
            "largest_context": self.largest_context,
            "warnings": [str(each) for each in self.warnings],
            "notes": list(basis.notes),
        }


class Previewer:
    """Previews from one basis. What was estimated once is kept: a slider asks for the same again and again."""

    def __init__(self, basis: Basis) -> None:
        self.basis = basis
        self._known: dict[Setting, Estimate] = {}
        self._largest: dict[Setting, int | None] = {}

    def moved_to(self, basis: Basis) -> "Previewer":
        """Return a previewer for another look at the machine's memory; of the same server the estimates are kept."""
        moved = Previewer(basis)
        mine = self.basis
        if (mine.geometry, mine.weights, mine.draft_model) == (basis.geometry, basis.weights, basis.draft_model):
            moved._known = self._known
        return moved

    def warm(self) -> Iterator[Preview]:
        """Preview what each slider alone can reach, one at a step: a graph that was never seen takes 10 ms."""
        basis = self.basis
        reach: dict[str, Iterable[Value]] = {
            "draft": range(LONGEST_DRAFT + 1) if basis.can_draft else (),
            "kv": basis.kv_types,
            "ubatch": UBATCHES,
            "slots": SLOTS,
            "n_cpu_moe": range(basis.expert_layers + 1),
            "ctx": basis.contexts,
        }
        for name, values in reach.items():
            for value in values:
                yield self.preview({name: value})

    def preview(self, changes: Mapping[str, Value]) -> Preview:
        """Return what `changes` would make of the server; those that change nothing are left out.

        Raises BadOption for a value that no engine could use, ModelHasNoHead for drafts of a model without a head.
        """
        basis = self.basis
        now = {name: value for name, value in changes.items() if name in APPLIES_NOW}
        wanted = {name: value for name, value in changes.items() if name not in now}
        options = with_settings(basis.options, wanted)
        setting = self._setting(options)
        if setting.draft and not basis.can_draft:
            raise ModelHasNoHead(f"{basis.options.model.name} has no MTP head.", "Leave the draft length at 0.")
        before, after = self._estimate(basis.setting), self._estimate(setting)
        return Preview(
            basis=basis,
            setting=setting,
            changes=(
                *(change for name in wanted if (change := self._change(name, options))),
                *(
                    Change(name, None, value, False, 0, Told(mark("applies from the next reply on")))
                    for name, value in now.items()
                ),
            ),
            estimate=after,
            difference_mib=_difference(before, after),
            largest_context=self._largest_context(setting),
            warnings=warnings_on(setting, basis.trained_context, uncounted=options.extra == basis.options.extra != ()),
        )

    def _estimate(self, setting: Setting) -> Estimate | None:
        basis = self.basis
        if basis.geometry is None or basis.weights is None:
            return None
        found = self._known.get(setting)
        if found is None:
            found = self._known[setting] = estimate(basis.geometry, basis.weights, setting, basis.draft_model)
        return found

    def _largest_context(self, setting: Setting) -> int | None:
        """Return the longest of the contexts that fits with these settings, the margin left free; None if none does."""
        key = replace(setting, context=0)
        if key not in self._largest:
            self._largest[key] = self._find_largest(setting)
        return self._largest[key]

    def _find_largest(self, setting: Setting) -> int | None:
        room = (self.basis.available_mib - self.basis.margin_mib) * _MIB
        steps = self.basis.contexts
        low, high = 0, len(steps)
        longest = self._estimate(replace(setting, context=steps[-1]))
        if longest is not None and longest.needed <= room:
            return steps[-1]
        while low < high:
            middle = (low + high) // 2
            found = self._estimate(replace(setting, context=steps[middle]))
            if found is None:
                return None
            low, high = (middle + 1, high) if found.needed <= room else (low, middle)
        return steps[low - 1] if low else None

    def _setting(self, options: ServeOptions) -> Setting:
        running = self.basis.setting
        return replace(
            running,
            context=options.context or running.context,
            kv=options.kv or USUAL_KV,
            draft=options.draft,
            ubatch=options.ubatch or USUAL_UBATCH,
            slots=options.slots,
            n_cpu_moe=options.n_cpu_moe or 0,
            draft_model_bytes=self.basis.draft_bytes if options.draft else 0,
        )

    def _change(self, name: str, options: ServeOptions) -> Change | None:
        """Return what one setting alone costs; None when it stays as it is."""
        basis = self.basis
        old, new = _effective(name, basis.options, basis.setting), _effective(name, options, self._setting(options))
        if old == new:
            return None
        alone = self._setting(with_settings(basis.options, {name: new if name in _OF_MEMORY else None}))
        mib = _difference(self._estimate(basis.setting), self._estimate(alone)) if name in _OF_MEMORY else None
        return Change(name, old, new, True, mib, consequence(name, old, new, mib))


_OF_MEMORY: Mapping[str, Callable[[Setting], Value]] = {
    "ctx": lambda setting: setting.context,
    "draft": lambda setting: setting.draft,
    "kv": lambda setting: setting.kv,
    "ubatch": lambda setting: setting.ubatch,
    "slots": lambda setting: setting.slots,
    "n_cpu_moe": lambda setting: setting.n_cpu_moe,
}


def _effective(name: str, options: ServeOptions, setting: Setting) -> Value:
    if name in _OF_MEMORY:
        return _OF_MEMORY[name](setting)
    if name == "threads":
        return options.threads
    return join_extra(options.extra) or None


def _difference(before: Estimate | None, after: Estimate | None) -> int | None:
    """MiB that `after` needs more than `before`, by the figures that are shown of both."""
    return None if before is None or after is None else _needed_mib(after) - _needed_mib(before)


def _needed_mib(found: Estimate) -> int:
    return -(-found.needed // _MIB)
