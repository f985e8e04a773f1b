"""Making a setting fit: what shrinks, in which order, until the estimate leaves the margin free."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from functools import partial

from launcher.base.words import part
from launcher.models.memory import Estimate, Setting

_MIB = 2**20
LEAST_CONTEXT = 32_768
"""Less is not proposed unless asked for: a model that thinks runs out of it."""
CONTEXTS = (262_144, 229_376, 196_608, 163_840, 131_072, 114_688, 98_304, 81_920, 65_536, 49_152, 40_960, 32_768)
LEAST_UBATCH = 256
"""Less saves little more."""

Measure = Callable[[Setting], Estimate]


@dataclass(frozen=True, slots=True)
class Fitted:
    """A setting that was made to fit as well as it can be, what it takes, and what was given up for it."""

    setting: Setting
    estimate: Estimate
    given_up: tuple[str, ...]

    @property
    def required_mib(self) -> int:
        """What it takes, in whole MiB."""
        return -(-self.estimate.parts.total // _MIB)

    @property
    def needed_mib(self) -> int:
        """What must be free for it, in whole MiB: over several GPUs more, for their shares are not alike."""
        return -(-self.estimate.needed // _MIB)


def fit(
    setting: Setting, budgets_mib: Sequence[int], fixed: frozenset[str], expert_layers: int, measure: Measure
) -> Fitted:
    """Shrink `setting` until it takes no more than the first of `budgets_mib`; where that cannot be, than the next.

    What goes first is what hurts least: ubatch, KV to q8_0, context, draft 3 to 2, KV to q4_0. Only when no budget is
    met that way do experts go to the host, as few as will do, and then as much as can be stays as it was. `fixed` names
    the fields that the user has chosen. What never fits comes back shrunk.
    """

    def fits(candidate: Setting, budget_mib: int) -> bool:
        return measure(candidate).needed <= budget_mib * _MIB

    def fewest(candidate: Setting, budget_mib: int) -> Setting:
        """Keep as few layers' experts on the host as make it fit; all where none do."""
        return replace(candidate, n_cpu_moe=fewest_on_host(candidate, expert_layers, budget_mib, measure))

    may_move = "n_cpu_moe" not in fixed and expert_layers > 0
    shrunk: tuple[Setting, tuple[str, ...]] = (setting, ())
    if not (may_move and setting.n_cpu_moe):
        for budget_mib in budgets_mib:
            shrunk = _shrink(setting, fixed, partial(fits, budget_mib=budget_mib))
            if fits(shrunk[0], budget_mib):
                return Fitted(shrunk[0], measure(shrunk[0]), shrunk[1])
    if may_move:
        begin = fewest(setting, budgets_mib[0])
        for budget_mib in budgets_mib:
            shrunk = _shrink(begin, fixed, partial(fits, budget_mib=budget_mib))
            if fits(shrunk[0], budget_mib):
                best = fewest(shrunk[0], budget_mib)
                return Fitted(best, measure(best), (*_moved(setting, best), *shrunk[1]))
        shrunk = shrunk[0], (*_moved(setting, shrunk[0]), *shrunk[1])
    return Fitted(shrunk[0], measure(shrunk[0]), shrunk[1])


def fewest_on_host(setting: Setting, most: int, budget_mib: int, measure: Measure) -> int:
    """Return of how many layers the experts must be on the host for `setting` to take no more than `budget_mib`.

    It is `most` when that is not enough either.
    """
    return _least(0, most, lambda count: measure(replace(setting, n_cpu_moe=count)).needed <= budget_mib * _MIB)


def _moved(wanted: Setting, found: Setting) -> tuple[str, ...]:
    if wanted.n_cpu_moe or not found.n_cpu_moe:
        return ()
    return (part("the experts of some layers in host memory"),)


def _shrink(
    setting: Setting, fixed: frozenset[str], fits: Callable[[Setting], bool]
) -> tuple[Setting, tuple[str, ...]]:
    given_up: list[str] = []
    for shrink in (_smaller_ubatch, _kv_to("f16", "q8_0"), _shorter_context, _draft_two, _kv_to("q8_0", "q4_0")):
        if fits(setting):
            break
        setting, why = shrink(setting, fixed, fits)
        if why:
            given_up.append(why)
    return setting, tuple(given_up)


Shrink = Callable[[Setting, frozenset[str], Callable[[Setting], bool]], tuple[Setting, str]]


def _smaller_ubatch(setting: Setting, fixed: frozenset[str], fits: Callable[[Setting], bool]) -> tuple[Setting, str]:
    if "ubatch" in fixed or setting.ubatch <= LEAST_UBATCH:
        return setting, ""
    smaller = setting
    while smaller.ubatch > LEAST_UBATCH and not fits(smaller):
        smaller = replace(smaller, ubatch=max(LEAST_UBATCH, smaller.ubatch // 2))
    return smaller, part(f"ubatch {smaller.ubatch} in place of {setting.ubatch}")


def _kv_to(old: str, new: str) -> Shrink:
    def shrink(setting: Setting, fixed: frozenset[str], _fits: Callable[[Setting], bool]) -> tuple[Setting, str]:
        if "kv" in fixed or setting.kv != old:
            return setting, ""
        return replace(setting, kv=new), part(f"a KV cache of {new} in place of {old}")

    return shrink


def _shorter_context(setting: Setting, fixed: frozenset[str], fits: Callable[[Setting], bool]) -> tuple[Setting, str]:
    ladder = [context for context in CONTEXTS if context < setting.context]
    if "context" in fixed or not ladder:
        return setting, ""
    step = _least(0, len(ladder) - 1, lambda index: fits(replace(setting, context=ladder[index])))
    told = part(f"a context of {ladder[step]:,} in place of {setting.context:,}")
    return replace(setting, context=ladder[step]), told


def _draft_two(setting: Setting, fixed: frozenset[str], _fits: Callable[[Setting], bool]) -> tuple[Setting, str]:
    if "draft" in fixed or setting.draft <= 2 or setting.ngrams:
        return setting, ""
    return replace(setting, draft=2), part(f"draft 2 in place of {setting.draft}")


def _least(low: int, high: int, good: Callable[[int], bool]) -> int:
    """Return the least number from `low` to `high` that is good, or `high` when none is; goodness only grows."""
    while low < high:
        middle = (low + high) // 2
        if good(middle):
            high = middle
        else:
            low = middle + 1
    return low
