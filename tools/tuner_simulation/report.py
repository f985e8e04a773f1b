"""Makes the tables of docs/tuning.md from simulated tunes."""

import statistics
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass

from launcher.tuning.verdict import MARGIN
from tools.markdown import format_table
from tools.tuner_simulation.machine import AXES, DRAFTS, KINDS, OFFLOAD_AXES
from tools.tuner_simulation.run import Outcome

NEAR = 0.98
"""Share of the best settings' true benefit from which a recommendation counts as right."""
_NAMES = {
    "dense": "all on the GPU, dense",
    "moe": "all on the GPU, experts",
    "offload": "experts on the processor",
    "hot": "text that is hard to draft",
}


@dataclass(frozen=True, slots=True)
class Promise:
    """A requirement of the tuner: a figure, its limit, and whether it is kept."""

    what: str
    limit: str
    figure: str
    kept: bool


def check_drafter_promises(several: Sequence[Outcome]) -> list[Promise]:
    """Return the promises for machines with several drafters."""
    figures = compute_figures(several)
    slower, regret, first_s = figures.slower_than_off / len(several), figures.mean_regret, figures.first_answer_s
    return [
        Promise("two to four drafters: mean regret", "<= 0.6 %", _format_percent(regret, 2), regret <= 0.006),
        Promise("the same: mean time to the first answer", "<= 150 s", f"{first_s:.0f} s", first_s <= 150),
        Promise(
            "the same: tunes that recommend something slower than MTP off",
            "< 0.1 %",
            _format_percent(slower, 2),
            slower < 0.001,
        ),
    ]


def check_promises(outcomes: Sequence[Outcome], pooled: Sequence[Outcome], tied: Sequence[Outcome]) -> list[Promise]:
    """Return the tuner's promises and whether they are kept.

    `outcomes` are of the main simulation, `pooled` of all with usual noise, `tied` of machines on which no setting
    matters.
    """
    figures = compute_figures(outcomes)
    slower = compute_figures(pooled).slower_than_off / len(pooled)
    covered = [o.covered for o in outcomes if o.covered is not None]
    right = sum(covered) / len(covered) if covered else 1.0
    claims = _share_holding(tied, lambda o: not o.likely and (o.answer == "on" or o.covered is not None))
    own = sum(o.own_s for o in outcomes) / sum(o.seconds for o in outcomes)
    regret, near, first_s = figures.mean_regret, figures.within_2, figures.first_answer_s
    return [
        Promise("mean regret", "<= 0.5 %", _format_percent(regret, 2), regret <= 0.005),
        Promise("tunes that end within 2 % of the true best", ">= 93 %", _format_percent(near), near >= 0.93),
        Promise("mean time to the first answer", "<= 150 s", f"{first_s:.0f} s", first_s <= 150),
        Promise(
            "tunes that recommend something slower than MTP off, loads of 2, 9 and 20 s pooled",
            "< 0.1 %",
            _format_percent(slower, 2),
            slower < 0.001,
        ),
        Promise("intervals of a gain that hold the true gain", ">= 95 %", _format_percent(right), right >= 0.95),
        Promise("false claims by pairs where no setting matters", "<= 5 %", _format_percent(claims), claims <= 0.05),
        Promise("the tuner's own time, of the time that it measures", "< 1 %", _format_percent(own, 3), own < 0.01),
    ]


@dataclass(frozen=True, slots=True)
class Figures:
    """Figures of some tunes. Shares are 0 to 1; `slower_than_off` counts machines.

    The regret of a tune is the share of the best settings' true benefit that its recommendation lacks; `worst` is the
    largest one. `first_answer_s` is the mean time until there is an answer, whose regret is `first_regret`.
    """

    machines: int
    mean_regret: float
    within_2: float
    undecided: float
    slower_than_off: int
    first_answer_s: float
    worst: float
    first_regret: float
    first_slower: int
    minutes: float


def compute_figures(outcomes: Sequence[Outcome]) -> Figures:
    """Return the figures of some tunes."""
    return Figures(
        machines=len(outcomes),
        mean_regret=statistics.fmean(1 - o.to_best for o in outcomes),
        within_2=_share_near_best(outcomes),
        undecided=_share_holding(outcomes, lambda o: o.answer == "undecided"),
        slower_than_off=sum(o.to_baseline < 1 - 1e-9 for o in outcomes),
        first_answer_s=statistics.fmean(o.first_s for o in outcomes),
        worst=max(1 - o.to_best for o in outcomes),
        first_regret=statistics.fmean(1 - o.first_to_best for o in outcomes),
        first_slower=sum(o.first_to_baseline < 1 - 1e-9 for o in outcomes),
        minutes=statistics.fmean(o.seconds for o in outcomes) / 60,
    )


def kept_table(found: Iterable[Promise]) -> str:
    """Return the promises as a table."""
    rows = [[each.what, each.limit, each.figure, "kept" if each.kept else "MISSED"] for each in found]
    return format_table(["what", "limit", "figure", "verdict"], rows)


def figures_table(groups: Sequence[tuple[str, Sequence[Outcome]]]) -> str:
    """Return one line with the figures of each group of tunes."""
    head = ["", "tunes", "mean regret", "within 2 %", "worst", "undecided", "likely", "slower than off"]
    head += ["first answer", "regret of the first answer", "first answers slower than off", "minutes"]
    rows = []
    for name, some in groups:
        f = compute_figures(some)
        likely = _format_percent(_share_holding(some, lambda o: o.likely), 0)
        row = [
            name,
            str(f.machines),
            _format_percent(f.mean_regret, 2),
            _format_percent(f.within_2),
            _format_percent(f.worst, 0),
        ]
        row += [_format_percent(f.undecided), likely, str(f.slower_than_off), f"{f.first_answer_s:.0f} s"]
        rows.append([*row, _format_percent(f.first_regret), str(f.first_slower), f"{f.minutes:.1f}"])
    return format_table(head, rows)


def grid_table() -> str:
    """Return the grid of simulated settings: their values and the machines that have them."""
    rows = [["draft length", "0 (MTP off), " + ", ".join(map(str, DRAFTS)), "all"]]
    for axis in dict.fromkeys((*AXES, *OFFLOAD_AXES)):
        where = (
            "all" if axis in AXES and axis in OFFLOAD_AXES else "GPU" if axis in AXES else "experts on the processor"
        )
        kind = " (with drafts only)" if axis.drafting else ""
        rows.append([f"`{axis.name}`{kind}", ", ".join(map(str, axis.values)), where])
    return format_table(["setting", "values", "machines"], rows)


def kinds_table(outcomes: Sequence[Outcome], more: Sequence[tuple[str, Sequence[Outcome]]] = ()) -> str:
    """Return the main simulation by kind of machine and by noise, and some more lines."""
    groups = [("all", list(outcomes))]
    groups += [(_NAMES[kind], [o for o in outcomes if o.kind == kind]) for kind in KINDS]
    noises = ((0.01, 0.03), (0.03, 0.055), (0.055, 0.08))
    for low, high in noises:
        groups.append((f"noise {100 * low:g} to {100 * high:g} %", [o for o in outcomes if low <= o.noise < high]))
    return results_table([*((name, some) for name, some in groups if some), *more])


def lengths_table(outcomes: Sequence[Outcome]) -> str:
    """Return the errors of forecasts by draft length."""
    rows = []
    for draft in (0, *DRAFTS):
        errors = [o.errors[draft] for o in outcomes if draft in o.errors]
        if not errors:
            continue
        worst = max(map(abs, errors))
        spread = statistics.pstdev(errors)
        mean = statistics.fmean(errors)
        rows.append(
            [str(draft), str(len(errors)), f"{100 * mean:+.1f} %", _format_percent(spread), _format_percent(worst)]
        )
    return format_table(["draft length", "forecasts", "mean error", "standard deviation", "worst"], rows)


def results_table(groups: Sequence[tuple[str, Sequence[Outcome]]]) -> str:
    """Return one line for each of some groups of tunes."""
    head = ["", "tunes", "within 2 %", "slower", "on / off / undecided", "MTP on, but slower", "intervals that hold"]
    rows = []
    for name, some in groups:
        answers = " / ".join(str(sum(o.answer == answer for o in some)) for answer in ("on", "off", "undecided"))
        wrong = sum(o.answer == "on" and o.speedup < 1 - MARGIN for o in some)
        covered = [o.covered for o in some if o.covered is not None]
        right = _format_percent(sum(covered) / len(covered)) if covered else "-"
        starts = statistics.fmean(o.starts for o in some)
        minutes = statistics.median(o.seconds for o in some) / 60
        near, slower = _format_percent(_share_near_best(some)), _format_percent(_share_slower(some))
        row = [name, str(len(some)), near, slower, answers, str(wrong), right]
        rows.append([*row, f"{starts:.0f}", _format_percent(_share_of_grid(some), 0), f"{minutes:.0f}"])
    return format_table([*head, "starts", "of one for each setting", "minutes (median)"], rows)


def _share_near_best(some: Sequence[Outcome]) -> float:
    return _share_holding(some, lambda o: o.to_best >= NEAR)


def _share_slower(some: Sequence[Outcome]) -> float:
    return _share_holding(some, lambda o: o.to_baseline < 1 - 1e-9)


def _share_of_grid(some: Sequence[Outcome]) -> float:
    """Return the starts of some tunes divided by those of trying every setting."""
    return sum(o.starts for o in some) / sum(o.grid for o in some)


def _share_holding(some: Sequence[Outcome], holds: Callable[[Outcome], bool]) -> float:
    return sum(map(holds, some)) / len(some)


def _format_percent(share: float, digits: int = 1) -> str:
    return f"{100 * share:.{digits}f} %"
