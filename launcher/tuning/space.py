"""Search space of a tune: draft lengths and other settings, and the combinations that fit into memory."""

from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field
from itertools import product

from launcher.base.errors import BadOption
from launcher.base.messages import message
from launcher.models.drafters import Drafter, choose_drafts, drafter_in, find_drafter
from launcher.models.server_settings import ROWS, Value
from launcher.tuning.records import RunSettings

DRAFT = "draft"
"""Name of the draft length among the settings; 0 is MTP off."""
DRAFTER = "drafter"
"""Name of what drafts. With the draft length it is one axis, how to draft: each drafter has each length, and MTP off is
one point of it."""
_MOST_COMBINATIONS = 10_000
_EXPERT_LAYER = 0.02
"""Share of a step's time that is expected to be saved by each layer whose experts move from the CPU to the GPU."""

Key = tuple[tuple[str, Value], ...]
"""Settings in hashable form."""


def settings_key(settings: RunSettings) -> Key:
    """Return the settings as a sorted, hashable key."""
    return tuple(sorted(settings.items()))


@dataclass(frozen=True, slots=True)
class SpaceAxis:
    """One setting other than the draft length, and the values to try. Those of DRAFTER are in the order of promise.

    With `memory`, values are in order of the memory that they need, least first: if one does not start for lack of
    memory, those after it are excluded, too. `drafting` settings have an effect only with drafts, and may change draft
    acceptance (p-min, draft sampling, n-gram drafts).
    """

    name: str
    values: tuple[Value, ...]
    memory: bool = False
    drafting: bool = False

    def applies_to(self, drafter: Drafter) -> bool:
        """Return whether it has an effect with a drafter."""
        return not self.drafting or (drafter.drafts and drafter.takes_setting(ROWS[self.name].drafting))

    @property
    def trend(self) -> float:
        """Expected change of the logarithm of a step's time from the first value to the last, 0 if unknown."""
        first, last = self.values[0], self.values[-1]
        if self.name == "n_cpu_moe" and isinstance(first, int) and isinstance(last, int):
            return -_EXPERT_LAYER * (first - last)
        return 0.0


@dataclass(frozen=True, slots=True)
class Space:
    """Everything a tune may try: the baseline, draft lengths, further axes, and a check of memory.

    `baseline` has the settings without MTP, with a value for each axis. Draft lengths are above 0; MTP off is always
    part of the space. `fits` returns whether settings fit into memory by the estimate. Values that do not fit with
    drafts may fit without them. `on_processor` is True if the processor computes the model, or some of its experts.
    """

    baseline: RunSettings
    drafts: tuple[int, ...] = (1, 2, 3, 4, 5, 6, 7, 8)
    axes: tuple[SpaceAxis, ...] = ()
    fits: Callable[[RunSettings], bool] | None = field(default=None, compare=False, metadata={"key": None})
    on_processor: bool = False

    def __post_init__(self) -> None:
        """Raise BadOption for an inconsistent or too large space."""
        if not self.drafts or min(self.drafts) < 1 or list(self.drafts) != sorted(set(self.drafts)):
            raise BadOption(message("Draft lengths to try are whole numbers from 1, each once, the shortest first."))
        if drafter_in(self.baseline).drafts:
            raise BadOption(message("The baseline of a tune is MTP off."), message("Leave out its draft length."))
        for axis in self.axes:
            if axis.name == DRAFT or self.baseline.get(axis.name) not in axis.values:
                raise BadOption(
                    message("The values of {name} to try do not include the baseline's own.", name=axis.name)
                )
        if self.size > _MOST_COMBINATIONS:
            raise BadOption(
                message(
                    "There are {size:,} combinations; the limit is {most:,}.",
                    size=self.size,
                    most=_MOST_COMBINATIONS,
                ),
                message("Remove a setting, or some of its values."),
            )

    @property
    def size(self) -> int:
        """Number of combinations, whether they fit or not."""
        on = off = 1
        for axis in self.axes:
            on *= len(axis.values)
            off *= 1 if axis.drafting else len(axis.values)
        return on * len(self.drafts) + off

    @property
    def drafters(self) -> tuple[Value, ...]:
        """What may draft, as DRAFTER has it, in the order of promise; the baseline's own if that is not varied."""
        return next((axis.values for axis in self.axes if axis.name == DRAFTER), (self.baseline.get(DRAFTER),))

    @property
    def other_axes(self) -> tuple[SpaceAxis, ...]:
        """The axes other than how to draft."""
        return tuple(axis for axis in self.axes if axis.name != DRAFTER)

    def lengths(self, drafter: Value) -> tuple[int, ...]:
        """Return the draft lengths that differ with a drafter, as DRAFTER has it."""
        return self.drafts if find_drafter(drafter).takes_length else self.drafts[:1]

    def baseline_settings(self) -> dict[str, Value]:
        """Return the baseline with an explicit draft length of 0."""
        return {**self.baseline, DRAFT: 0}

    def fitting_settings(self) -> Iterator[dict[str, Value]]:
        """Yield the baseline, then every other combination that fits."""
        baseline = self.baseline_settings()
        yield baseline
        ways = [(drafter, draft) for drafter in self.drafters for draft in self.lengths(drafter)]
        for drafter, draft in ((baseline.get(DRAFTER), 0), *ways):
            row = choose_drafts(find_drafter(drafter), draft).drafter
            choices = [axis.values if axis.applies_to(row) else (baseline[axis.name],) for axis in self.other_axes]
            for values in product(*choices):
                chosen = {**baseline, DRAFT: draft}
                if DRAFTER in baseline:
                    chosen[DRAFTER] = drafter
                chosen |= {axis.name: value for axis, value in zip(self.other_axes, values, strict=True)}
                if chosen != baseline and (self.fits is None or self.fits(chosen)):
                    yield chosen

    def memory_ranks(self, settings: RunSettings) -> tuple[int, ...]:
        """Return the draft length of each drafter, 0 of those not in use, and the position on each axis of memory.

        Settings need at least as much memory as others if none of their numbers is lower.
        """
        lengths = (draft_length(settings) if settings.get(DRAFTER) == each else 0 for each in self.drafters)
        return *lengths, *(axis.values.index(settings[axis.name]) for axis in self.other_axes if axis.memory)

    def identity(self) -> dict[str, object]:
        """Return what makes the space the same when a tune is continued, as JSON data."""
        axes = [[a.name, list(a.values), a.memory, a.drafting] for a in self.axes]
        return {
            "baseline": self.baseline_settings(),
            "drafts": list(self.drafts),
            "axes": axes,
            "on_processor": self.on_processor,
        }


def way_of(settings: Mapping[str, Value]) -> tuple[Value, int]:
    """Return how settings draft: the drafter, as DRAFTER has it, and the length; (None, 0) for MTP off."""
    length = draft_length(settings)
    return (settings.get(DRAFTER) if length else None), length


def draft_length(settings: Mapping[str, Value]) -> int:
    """Return the draft length, 0 for MTP off."""
    return int(settings.get(DRAFT) or 0)
