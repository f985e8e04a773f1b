"""What a tune may change: draft lengths and other settings, and which of their combinations fit into memory."""

from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field
from itertools import product

from launcher.base.errors import BadOption
from launcher.tuning.records import Settings, Value

DRAFT = "draft"
"""The name of the draft length among the settings; 0 is MTP off."""
_MOST = 5_000

Key = tuple[tuple[str, Value], ...]
"""Settings as something that can be compared and looked up."""


def key(settings: Settings) -> Key:
    """Return the settings in the order of their names."""
    return tuple(sorted(settings.items()))


@dataclass(frozen=True, slots=True)
class Axis:
    """One setting beside the draft length, and the values that may be tried.

    With `memory` the values stand in the order of the memory that they take, least first, and when one does not
    start for want of memory, neither do those after it. `drafting` settings mean something only while there are
    drafts, and may change how many of those are accepted (p-min, draft sampling, n-gram drafts).
    """

    name: str
    values: tuple[Value, ...]
    memory: bool = False
    drafting: bool = False


@dataclass(frozen=True, slots=True)
class Space:
    """All that may be tried: the baseline, draft lengths, further axes, and what fits.

    `baseline` is what runs without MTP, with a value for each axis. Draft lengths are above 0; MTP off is always part
    of the space. `fits` says of settings whether they can be served, as far as is known before: without drafts there
    is more memory, so it may allow values of other axes that it forbids with them.
    """

    baseline: Settings
    drafts: tuple[int, ...] = (1, 2, 3, 4, 5, 6)
    axes: tuple[Axis, ...] = ()
    fits: Callable[[Settings], bool] | None = field(default=None, compare=False)

    def __post_init__(self) -> None:
        """Raise BadOption for a space that makes no sense."""
        if not self.drafts or min(self.drafts) < 1 or list(self.drafts) != sorted(set(self.drafts)):
            raise BadOption("Draft lengths to try are whole numbers from 1, each once, the shortest first.")
        if self.baseline.get(DRAFT, 0) != 0:
            raise BadOption("The baseline of a tune is MTP off.", "Leave out its draft length.")
        for axis in self.axes:
            if axis.name == DRAFT or self.baseline.get(axis.name) not in axis.values:
                raise BadOption(f"The values of {axis.name} to try do not include the baseline's own.")
        if self.size > _MOST:
            raise BadOption(
                f"There are {self.size:,} combinations to choose from, and {_MOST:,} are the most.",
                "Leave out a setting, or some of its values.",
            )

    @property
    def size(self) -> int:
        """How many combinations there are, whether they fit or not."""
        on = off = 1
        for axis in self.axes:
            on *= len(axis.values)
            off *= 1 if axis.drafting else len(axis.values)
        return on * len(self.drafts) + off

    def off(self) -> dict[str, Value]:
        """Return the baseline with its draft length written out."""
        return {**self.baseline, DRAFT: 0}

    def with_draft(self, draft: int) -> dict[str, Value]:
        """Return the baseline's settings with another draft length."""
        return {**self.baseline, DRAFT: draft}

    def settings(self) -> Iterator[dict[str, Value]]:
        """Yield the baseline, then every other combination that fits."""
        baseline = self.off()
        yield baseline
        for draft in (0, *self.drafts):
            choices = [axis.values if draft or not axis.drafting else (baseline[axis.name],) for axis in self.axes]
            for values in product(*choices):
                chosen = {**baseline, DRAFT: draft, **dict(zip((a.name for a in self.axes), values, strict=True))}
                if chosen != baseline and (self.fits is None or self.fits(chosen)):
                    yield chosen

    def needs_as_much(self, other: Settings, failed: Settings) -> bool:
        """Return whether `other` takes at least the memory of `failed`: no less of it by any axis."""
        if draft_of(other) < draft_of(failed):
            return False
        ranks = [(axis.values.index(other[axis.name]), axis.values.index(failed[axis.name])) for axis in self._memory()]
        return all(mine >= theirs for mine, theirs in ranks)

    def _memory(self) -> Iterator[Axis]:
        return (axis for axis in self.axes if axis.memory)

    def as_json(self) -> dict[str, object]:
        """Return what tells this space from another; `fits` is no part of it."""
        axes = [[a.name, list(a.values), a.memory, a.drafting] for a in self.axes]
        return {"baseline": self.off(), "drafts": list(self.drafts), "axes": axes}


def draft_of(settings: Mapping[str, Value]) -> int:
    """Return the draft length, 0 for MTP off."""
    return int(settings.get(DRAFT) or 0)
