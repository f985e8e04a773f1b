"""Two measurements beside each other: what differs between them, and how many times as fast the second is."""

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from launcher.base.errors import BadOption
from launcher.tuning.history_records import Session
from launcher.tuning.records import Settings
from launcher.tuning.report import Row, report, row_data, started, words
from launcher.tuning.report_compare import FEWEST_STARTS, Speedup, Start, percent_faster, speedup_of_starts
from launcher.tuning.space import DRAFT, Key, key


@dataclass(frozen=True, slots=True)
class Beside:
    """Settings of the first measurement and of the second, their figures, and how many times as fast the second is.

    `speedup` is None where one of them has no run that counts; it has limits from FEWEST_STARTS starts of each.
    """

    first: Row
    second: Row
    speedup: Speedup | None

    @property
    def has_limits(self) -> bool:
        """Whether it is known between which limits the speed-up lies."""
        return self.speedup is not None and math.isfinite(self.speedup.ratio.high)

    @property
    def sentence(self) -> str | None:
        """The speed-up in words."""
        if self.speedup is None or self.has_limits:
            return percent_faster(self.speedup.ratio) if self.speedup else None
        return f"{self.speedup.ratio.estimate:.2f} times as fast (too few starts for limits)"

    @property
    def label(self) -> str:
        """The settings in a line: once where they are the same."""
        labels = [words(row.settings) or "as served" for row in (self.first, self.second)]
        if labels[0] == labels[1]:
            return labels[0]
        shared = {k: v for k, v in self.first.settings.items() if self.second.settings.get(k) == v and k != DRAFT}
        own = [words({k: v for k, v in row.settings.items() if k not in shared}) for row in (self.first, self.second)]
        return " -> ".join(text or "as served" for text in own)


def tune_note(session: Session) -> str:
    """Return why a tune's own verdict has other figures than a table of all its starts; nothing for other verbs."""
    if session.kind != "tune" or not session.result.get("sentence"):
        return ""
    return (
        "These figures take in every start, also those of the search. The tune's own verdict rests on the fresh pairs "
        "that it made to compare, so its figures differ, and they are the ones to go by."
    )


@dataclass(frozen=True, slots=True)
class Two:
    """Two measurements compared. `differences` are those of prompts, hardware, driver, engine and model, in words."""

    first: Session
    second: Session
    differences: tuple[str, ...]
    rows: tuple[Beside, ...]

    @property
    def notes(self) -> tuple[str, ...]:
        """What to know of how it was compared."""
        kinds = {row.speedup.paired for row in self.rows if row.speedup and row.has_limits}
        notes = []
        if self.first.id == self.second.id and (own := tune_note(self.first)):
            notes.append(f"{own} It says: {self.first.result['sentence']}")
        if True in kinds:
            notes.append(
                "Compared in pairs, of neighbouring starts or of the same prompts, so that what both share cancels."
            )
        if False in kinds:
            notes.append("Compared as two groups (Welch's t test on the logarithms of the speeds).")
        if any(row.speedup and not row.has_limits for row in self.rows):
            notes.append(
                f"Limits take {FEWEST_STARTS} starts of each: the replies of one do not show how starts differ. `tune` "
                "starts settings again and again, in turns."
            )
        if self.first.id != self.second.id and any(row.speedup for row in self.rows):
            notes.append("They were measured at different times: what had changed by then is in the difference.")
        return tuple(notes)

    def as_json(self) -> dict[str, Any]:
        """Return it for programs."""
        return {
            "first": _about(self.first),
            "second": _about(self.second),
            "differences": list(self.differences),
            "rows": [
                {
                    "first": row_data(row.first),
                    "second": row_data(row.second),
                    "ratio": row.speedup.ratio.as_json() if row.speedup else None,
                    "paired": row.speedup.paired if row.speedup else None,
                    "told_apart": row.speedup.told_apart if row.speedup else None,
                    "sentence": row.sentence,
                }
                for row in self.rows
            ],
            "notes": list(self.notes),
        }


def two(
    first: Session,
    second: Session,
    first_is: Mapping[str, str] | None = None,
    second_is: Mapping[str, str] | None = None,
) -> Two:
    """Compare two measurements, or settings of one; `first_is` and `second_is` choose settings, as a user writes them.

    Settings that both have measured are compared with each other; where each has but one, these two. Raises BadOption
    where that leaves nothing, or more than one on a side that the other has not.
    """
    ones, others = _chosen(first, first_is or {}), _chosen(second, second_is or {})
    chosen = {_name(name) for name in (*(first_is or {}), *(second_is or {}))}
    pairs = _same(ones, others, set()) or _same(ones, others, chosen)
    if len(ones) == len(others) == 1:
        pairs = [(ones[0], others[0])]
    if not pairs:
        raise BadOption(
            "The two have measured no settings in common.",
            "Choose one of each, as in `ID:draft=2`: "
            + "; ".join(words(group.row.settings) for group in (*ones, *others)),
        )
    together = first.id == second.id
    return Two(
        first,
        second,
        (*_other_prompts(first, second), *first.environment.differences(second.environment)),
        tuple(_beside(one, other, together=together) for one, other in pairs),
    )


@dataclass(frozen=True, slots=True)
class _Group:
    """Settings of a measurement: their figures, and the starts that these are of."""

    row: Row
    starts: Sequence[Start]


def _other_prompts(first: Session, second: Session) -> tuple[str, ...]:
    """Return that the two were asked other things, where they were: their speeds are those of other texts then."""
    asked, also = ({run.prompt for run in each.runs} for each in (first, second))
    if first.workload != second.workload:
        before, after = first.workload or "no workload", second.workload or "no workload"
        return (f"The prompts were those of {before} and are those of {after}.",)
    return () if asked & also else (f"The prompts of {first.workload} were others then.",)


def _beside(one: _Group, other: _Group, *, together: bool) -> Beside:
    able = one.row.runs and other.row.runs
    found = speedup_of_starts(one.starts, other.starts, together=together, by_start=True) if able else None
    return Beside(one.row, other.row, found)


def _same(ones: Sequence[_Group], others: Sequence[_Group], but_for: set[str]) -> list[tuple[_Group, _Group]]:
    """Return those whose settings are the same but for some."""

    def left(group: _Group) -> Key:
        return key({name: value for name, value in group.row.settings.items() if name not in but_for})

    by_settings = {left(group): group for group in others}
    return [(group, same) for group in ones if (same := by_settings.get(left(group))) is not None]


def _chosen(session: Session, wanted: Mapping[str, str]) -> list[_Group]:
    groups = [_Group(*each) for each in zip(report(session.runs).rows, started(session.runs), strict=True)]
    found = [group for group in groups if all(_is(group.row.settings, name, text) for name, text in wanted.items())]
    if not found:
        what = words(dict(wanted)) if wanted else "anything"
        listed = "; ".join(words(group.row.settings) or "as served" for group in groups)
        raise BadOption(f"{session.id} has not measured {what}.", f"It has {listed}." if listed else "")
    return found


def _is(settings: Settings, name: str, text: str) -> bool:
    value = settings.get(_name(name), 0 if _name(name) == DRAFT else None)
    return text.strip().lower() == ("default" if value is None else str(value).lower())


def _name(text: str) -> str:
    return text.strip().lower().replace("-", "_")


def _about(session: Session) -> dict[str, Any]:
    return {
        "id": session.id,
        "kind": session.kind,
        "workload": session.workload,
        "began_s": session.began_s,
        "environment": session.environment.as_json(),
    }
