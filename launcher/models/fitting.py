"""Shrinks server settings, in a fixed order, until the memory estimate fits into the budget.

It also limits what a server adds to host memory while it runs. llama-server's own limits are 8,192 MiB for the prompt
cache (--cache-ram) and 32 context checkpoints per slot (--ctx-checkpoints), regardless of the computer's memory. With
less to spare, both grow until the system swaps or kills the engine.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from functools import partial

from launcher.base.messages import message
from launcher.models.geometry import Geometry
from launcher.models.memory import ROOM_MIB, MemoryEstimate, PlanSettings, effective_value, kv_bits
from launcher.models.server_settings import Value
from launcher.models.situation import Situation

_MIB = 2**20
LEAST_CONTEXT = 32_768
"""Shorter contexts, in tokens, are proposed only on request: a reasoning model runs out of them."""
CONTEXTS = (262_144, 229_376, 196_608, 163_840, 131_072, 114_688, 98_304, 81_920, 65_536, 49_152, 40_960, 32_768)
CONTEXT_WITHOUT_GPU = 32_768
"""Context in tokens when the model runs on the processor, which needs many minutes to read a longer prompt."""
SHORT_CONTEXTS = (24_576, 16_384, 12_288, 8_192, 4_096)
"""Contexts below LEAST_CONTEXT: only for a file that the user named and that fits with none of CONTEXTS."""
LEAST_UBATCH = 256
"""Smallest ubatch that is tried: a smaller one saves little more memory."""
CACHE_STEP_MIB = 256
"""Step of the expert cache's size."""
CACHE_GAIN = 1.05
"""An expert cache is chosen if it multiplies the speed by at least this; a smaller gain may be an error of the
forecast."""
_CACHE_ABORTS = frozenset({"cohere2moe"})
"""Architectures for which an expert cache and a quantised KV cache together abort llama.cpp b11480 to b12568 (#32584).
"""
_CACHES_MIB = (4_096, 2_048, 1_024, 512, 256, 0)
_CHECKPOINTS = (32, 16, 8, 4)
"""Limits that are tried for context checkpoints. With fewer, a hybrid model would reprocess most of each prompt."""

HOST_LIMITS = ("cache_ram", "ctx_checkpoints")
"""The server settings that `choose_host_limits` sets."""

Measure = Callable[[PlanSettings], MemoryEstimate]
Rate = Callable[[PlanSettings], float | None]
"""Returns the expected tokens per second of a setting, None if unknown."""


@dataclass(frozen=True, slots=True)
class FitResult:
    """A setting shrunk to fit as well as possible, its memory estimate, and the concessions as messages."""

    setting: PlanSettings
    estimate: MemoryEstimate
    given_up: tuple[str, ...]


def fit_settings(
    setting: PlanSettings, budgets_mib: Sequence[int], fixed: frozenset[str], expert_layers: int, measure: Measure
) -> FitResult:
    """Shrink `setting` until it needs no more than the first of `budgets_mib`; if that is impossible, than the next.

    The least harmful change comes first: ubatch, KV cache to q8_0, context, draft 3 to 2, KV cache to q4_0. Experts
    move to the host only if no budget can be met that way: as few layers as possible, and then the other settings are
    shrunk as little as possible. `fixed` names the fields that the user chose, which stay. A setting that never fits is
    returned shrunk.
    """

    def fits(candidate: PlanSettings, budget_mib: int) -> bool:
        return measure(candidate).needed_bytes <= budget_mib * _MIB

    def move_fewest(candidate: PlanSettings, budget_mib: int) -> PlanSettings:
        """Move the experts of the fewest layers to the host with which it fits, or of all layers if nothing fits."""
        return replace(candidate, n_cpu_moe=fewest_on_host(candidate, expert_layers, budget_mib, measure))

    may_move = "n_cpu_moe" not in fixed and expert_layers > 0
    shrunk: tuple[PlanSettings, tuple[str, ...]] = (setting, ())
    if not (may_move and setting.n_cpu_moe):
        for budget_mib in budgets_mib:
            shrunk = _shrink(setting, fixed, partial(fits, budget_mib=budget_mib))
            if fits(shrunk[0], budget_mib):
                return FitResult(shrunk[0], measure(shrunk[0]), shrunk[1])
    if may_move:
        begin = move_fewest(setting, budgets_mib[0])
        for budget_mib in budgets_mib:
            shrunk = _shrink(begin, fixed, partial(fits, budget_mib=budget_mib))
            if fits(shrunk[0], budget_mib):
                best = move_fewest(shrunk[0], budget_mib)
                return FitResult(best, measure(best), (*_moved_note(setting, best), *shrunk[1]))
        shrunk = shrunk[0], (*_moved_note(setting, shrunk[0]), *shrunk[1])
    return FitResult(shrunk[0], measure(shrunk[0]), shrunk[1])


def shorter_contexts(contexts: Sequence[int], most: int) -> tuple[int, ...]:
    """Return the members of `contexts` below `most`, in tokens."""
    return tuple(context for context in contexts if context < most)


def fewest_on_host(setting: PlanSettings, most: int, budget_mib: int, measure: Measure) -> int:
    """Return the fewest layers whose experts must be on the host for `setting` to need at most `budget_mib`.

    Returns `most` if even that is not enough. The search begins with the setting's own count, which is often right.
    """

    def is_enough(count: int) -> bool:
        return measure(replace(setting, n_cpu_moe=count)).needed_bytes <= budget_mib * _MIB

    own, least = min(setting.n_cpu_moe, most), 0
    if own and not is_enough(own):
        least = own + 1
    elif own:
        most = own
        if not is_enough(own - 1):
            return own
    return _search_least(least, most, is_enough)


def add_expert_cache(
    fitted: FitResult,
    budget_mib: int,
    fixed: frozenset[str],
    expert_layers: int,
    host_mib: int | None,
    measure: Measure,
    rate: Rate,
) -> FitResult:
    """Give GPU memory to a cache of the experts in host memory if that is clearly faster, else return `fitted`.

    Two sizes are compared: the memory that is left, and, if `host_mib` suffice for all experts, that memory and the
    memory of the experts on the GPU, which then move to the host. A cache holds the experts that are needed most, of
    all layers.
    """
    setting = fitted.setting
    if not setting.n_cpu_moe or "moe_cache_mib" in fixed:
        return fitted
    plain = rate(setting)
    if plain is None:
        return fitted
    layer_counts = (
        {setting.n_cpu_moe} if "n_cpu_moe" in fixed else {setting.n_cpu_moe, max(setting.n_cpu_moe, expert_layers)}
    )
    faster: list[tuple[float, FitResult]] = []
    for count in sorted(layer_counts):
        bare = measure(replace(setting, n_cpu_moe=count))
        if count > setting.n_cpu_moe and host_mib is not None and host_need_mib(bare) > host_mib:
            continue
        spare_mib = min(budget_mib - bare.needed_mib, bare.host.weights // _MIB)
        cached = replace(setting, n_cpu_moe=count, moe_cache_mib=spare_mib // CACHE_STEP_MIB * CACHE_STEP_MIB)
        if spare_mib >= CACHE_STEP_MIB and (speed := rate(cached) or 0) >= CACHE_GAIN * plain:
            faster.append((speed, replace(fitted, setting=cached, estimate=measure(cached))))
    return max(faster, key=lambda one: one[0], default=(0.0, fitted))[1]


def can_have_expert_cache(situation: Situation, geometry: Geometry, kv: str) -> bool:
    """Return whether a plan may have an expert cache, if the engine has one."""
    if situation.gpus > 1:  # the engine keeps the cache on the first one
        return False
    return geometry.architecture not in _CACHE_ABORTS or kv_bits(kv) >= 16


def _moved_note(wanted: PlanSettings, found: PlanSettings) -> tuple[str, ...]:
    if wanted.n_cpu_moe or not found.n_cpu_moe:
        return ()
    return (message("the experts of some layers on the CPU"),)


def _shrink(
    setting: PlanSettings, fixed: frozenset[str], fits: Callable[[PlanSettings], bool]
) -> tuple[PlanSettings, tuple[str, ...]]:
    given_up: list[str] = []
    for shrink in (
        _smaller_ubatch,
        _smaller_kv("f16", "q8_0"),
        _shorter_context,
        _shorter_draft,
        _smaller_kv("q8_0", "q4_0"),
    ):
        if fits(setting):
            break
        setting, why = shrink(setting, fixed, fits)
        if why:
            given_up.append(why)
    return setting, tuple(given_up)


Shrink = Callable[[PlanSettings, frozenset[str], Callable[[PlanSettings], bool]], tuple[PlanSettings, str]]


def _smaller_ubatch(
    setting: PlanSettings, fixed: frozenset[str], fits: Callable[[PlanSettings], bool]
) -> tuple[PlanSettings, str]:
    if "ubatch" in fixed or setting.ubatch <= LEAST_UBATCH:
        return setting, ""
    smaller = setting
    while smaller.ubatch > LEAST_UBATCH and not fits(smaller):
        smaller = replace(smaller, ubatch=max(LEAST_UBATCH, smaller.ubatch // 2))
    return smaller, message("ubatch {ubatch} instead of {before}", ubatch=smaller.ubatch, before=setting.ubatch)


def _smaller_kv(old: str, new: str) -> Shrink:
    def shrink(
        setting: PlanSettings, fixed: frozenset[str], _fits: Callable[[PlanSettings], bool]
    ) -> tuple[PlanSettings, str]:
        if "kv" in fixed or setting.kv != old:
            return setting, ""
        return replace(setting, kv=new), message("KV cache {new} instead of {old}", new=new, old=old)

    return shrink


def _shorter_context(
    setting: PlanSettings, fixed: frozenset[str], fits: Callable[[PlanSettings], bool]
) -> tuple[PlanSettings, str]:
    ladder = shorter_contexts(CONTEXTS, setting.context)
    if "context" in fixed or not ladder:
        return setting, ""
    step = _search_least(0, len(ladder) - 1, lambda index: fits(replace(setting, context=ladder[index])))
    concession = message("context {new:,} instead of {old:,}", new=ladder[step], old=setting.context)
    return replace(setting, context=ladder[step]), concession


def _shorter_draft(
    setting: PlanSettings, fixed: frozenset[str], _fits: Callable[[PlanSettings], bool]
) -> tuple[PlanSettings, str]:
    if "draft" in fixed or setting.draft <= 2 or not setting.drafter.takes_length:
        return setting, ""
    return replace(setting, draft=2), message("draft length 2 instead of {draft}", draft=setting.draft)


def _search_least(low: int, high: int, is_enough: Callable[[int], bool]) -> int:
    """Return the least number from `low` to `high` for which `is_enough` holds, or `high` if none (a binary search).

    If it holds for a number, it must hold for all larger ones.
    """
    while low < high:
        middle = (low + high) // 2
        if is_enough(middle):
            high = middle
        else:
            low = middle + 1
    return low


def host_need_mib(estimate: MemoryEstimate) -> int:
    """Return the host memory, in MiB, that a server needs at its start, including ROOM_MIB for the system."""
    on_host = estimate.parts.total if estimate.setting.backend == "cpu" else estimate.host.at_start
    return on_host // _MIB + ROOM_MIB


def overfills_host(estimate: MemoryEstimate, host_mib: int) -> bool:
    """Return whether a server, with full prompt cache and checkpoints, may exceed the `host_mib` that are available."""
    setting = estimate.setting
    checkpoints, cache = (effective_value(name, getattr(setting, name)) for name in ("ctx_checkpoints", "cache_ram"))
    most_mib = estimate.host.checkpoint * setting.slots * checkpoints / _MIB + cache
    return host_need_mib(estimate) + most_mib > host_mib


def choose_host_limits(estimate: MemoryEstimate, host_mib: int) -> dict[str, Value]:
    """Return the limits, by setting name, that keep a server within the `host_mib` that are available.

    Values set by the user stay, and nothing is limited if llama-server's own limits fit. The limits are a few powers of
    two: free memory changes every second, and a plan and the start after it should choose the same limits.
    """
    setting = estimate.setting
    spare = max(0, host_mib - host_need_mib(estimate))
    chosen: dict[str, Value] = {}
    checkpoint_mib = estimate.host.checkpoint * setting.slots / _MIB
    checkpoints, cache = (effective_value(name, getattr(setting, name)) for name in ("ctx_checkpoints", "cache_ram"))
    if setting.ctx_checkpoints is None and checkpoint_mib * checkpoints + cache > spare:
        checkpoints = next((count for count in _CHECKPOINTS if checkpoint_mib * count <= spare / 2), _CHECKPOINTS[-1])
        if checkpoints != _CHECKPOINTS[0]:
            chosen["ctx_checkpoints"] = checkpoints
    if setting.cache_ram is None and checkpoint_mib * checkpoints + cache > spare:
        chosen["cache_ram"] = next((mib for mib in _CACHES_MIB if mib <= spare - checkpoint_mib * checkpoints), 0)
    return chosen
