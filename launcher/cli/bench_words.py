"""What `bench` prints: figures of one server, or several in a table."""

from __future__ import annotations

from statistics import fmean
from typing import TYPE_CHECKING, Any

from launcher.base.text import one_line
from launcher.base.units import percent
from launcher.cli.layout import filled, print_table
from launcher.cli.output import print_json, rounded
from launcher.tuning.statistics import LEVEL, plus_minus

if TYPE_CHECKING:
    from collections.abc import Sequence

    from launcher.benchmark import Benchmark, Target
    from launcher.tuning.measure import Figure, Measured
    from launcher.tuning.records import Run
    from launcher.tuning.versus import Standing
    from launcher.tuning.workloads import Workload

_UNKNOWN = "not known"


def print_workloads(found: Sequence[Workload], *, as_json: bool) -> None:
    """List workloads."""
    if as_json:
        print_json(
            [
                {
                    "name": each.name,
                    "title": each.title,
                    "about": each.about,
                    "version": each.version,
                    "prompts": len(each.prompts),
                    "reply_tokens": each.reply_tokens,
                    "runs": each.runs,
                }
                for each in found
            ]
        )
        return
    rows = [(each.name, str(len(each.prompts)), f"{each.reply_tokens:,}", each.about) for each in found]
    print_table([("WORKLOAD", "PROMPTS", "TOKENS A ROUND", "WHAT"), *rows], right=(1, 2))


def print_benchmark(told: Benchmark, cost: str = "") -> None:
    """Print what was measured of one server."""
    found, work = told.measured, told.workload
    settings = ", ".join(f"{name.replace('_', '-')} {value}" for name, value in told.settings.items())
    model = one_line(told.environment.model.words)
    engine = one_line(f"{told.environment.engine} {told.environment.engine_version}")
    print(filled(f"{work.title} (version {work.version}) on {model}, engine {engine}, {settings}."))
    lines = {
        "decode": _speed(found),
        "prompts": _by_prompt(found.counted),
        "prefill": f"{found.prefill.mean:.0f} tokens/s" if found.prefill else _UNKNOWN,
        "first token": f"{found.first_token.mean:.3f} s" if found.first_token else _UNKNOWN,
        "drafts": _drafts(found),
        "power": _power(found),
        "cost": cost,
        "left out": _left_out(found),
    }
    for name, text in lines.items():
        if text:
            print(filled(text, f"  {name:<12} "))
    kept = f"Kept as {told.kept}: `mtp-launcher history show {told.kept}`." if told.kept else ""
    print(filled(f"{_end(found)}{kept}"))


def _speed(found: Measured) -> str:
    decode, interval = found.decode, found.interval
    if decode is None:
        return _UNKNOWN
    whose = "" if found.clock == "engine" else ", by the clock here"
    said = f"{decode.mean:.1f} tokens/s"
    if interval is not None and interval.n > 1:
        reach = plus_minus(interval)
        said += reach
        if "±" in reach:
            said += f" (95 % interval of the mean of {interval.n} rounds{whose})"
    spread = f"; standard deviation {decode.stdev:.1f}" if decode.stdev is not None else ""
    return f"{said}{spread} over {decode.runs} replies"


def _by_prompt(counted: tuple[Run, ...]) -> str:
    rates: dict[str, list[float]] = {}
    for each in counted:
        rates.setdefault(each.prompt, []).append(each.decode_rate or 0.0)
    return ", ".join(f"{name} {fmean(values):.1f}" for name, values in rates.items()) if len(rates) > 1 else ""


def _drafts(found: Measured) -> str:
    drafts = found.acceptance
    if drafts is None:
        return "none"
    by_position = ", ".join(percent(share) for share in drafts.rates_by_position)
    whole = f"{percent(drafts.rate)} accepted ({drafts.accepted:,} of {drafts.drafted:,}"
    step = f"each step of the engine writes {drafts.mean_length:.2f} tokens, without MTP 1"
    return f"{whole}; by position {by_position}); {step}"


def _power(found: Measured) -> str:
    power: Figure | None = found.power
    if power is None:
        return ""
    energy = f", {found.tokens_per_joule:.2f} tokens a joule" if found.tokens_per_joule else ""
    heat = f", up to {found.hottest_c:.0f} °C" if found.hottest_c is not None else ""
    return f"{power.mean:.0f} W{energy}{heat}"


def _left_out(found: Measured) -> str:
    why = [each.error or each.spoilt or "" for each in found.runs if each.error or each.spoilt]
    return f"{len(why)} replies: {' '.join(dict.fromkeys(why))}" if why else ""


def _end(found: Measured) -> str:
    from launcher.tuning.measure import Ended

    if found.ended is Ended.BUDGET and found.interval is not None:
        share = found.interval.half_width / found.interval.estimate
        known = f"to {100 * share:.1f} %" if found.interval.n > 1 else "from one round only"
        return f"The time was up: the mean is known {known}. "
    return "The server failed before the end. " if found.ended is Ended.FAILED else ""


def benchmark_json(benchmark: Benchmark) -> dict[str, Any]:
    """Return what was measured of one server, with its runs, without digits that mean nothing."""
    told = benchmark.as_json()
    interval = told.pop("interval") or {}
    shares = {name: rounded(told[name], 4) for name in ("acceptance", "first_token_s", "tokens_per_joule")}
    rates = {name: rounded(told[name], 3) for name in ("mean", "stdev", "prefill", "power_w", "temperature_c")}
    ends = {"ci_low": rounded(interval.get("low"), 3), "ci_high": rounded(interval.get("high"), 3)}
    by_position = [rounded(share, 4) for share in told["acceptance_by_position"]]
    figures = {**rates, **shares, **ends, "rounds": interval.get("n", 0), "acceptance_by_position": by_position}
    return {**told, **figures, "kept": benchmark.kept, "runs": [_run_json(each) for each in benchmark.measured.runs]}


def _run_json(run: Run) -> dict[str, Any]:
    drafts = run.acceptance
    return {
        "prompt": run.prompt,
        "prompt_n": run.prompt_tokens,
        "cache_n": run.cached_tokens,
        "predicted_n": run.reply_tokens,
        "tokens_per_second": rounded(run.decode_rate, 3),
        "prefill_per_second": rounded(run.prefill_rate, 3),
        "first_token_s": rounded(run.first_token_s, 4),
        "draft_n": drafts and drafts.drafted,
        "draft_n_accepted": drafts and drafts.accepted,
        "acceptance_by_position": [rounded(share, 4) for share in drafts.rates_by_position] if drafts else [],
        "power_w": rounded(run.power_w),
        "temperature_c": rounded(run.temperature_c),
        "clock_mhz": rounded(run.clock_mhz),
        "spoilt": run.spoilt,
        "error": run.error,
    }


def print_standings(found: Sequence[Standing], targets: Sequence[Target], work: Workload) -> None:
    """Print several servers in a table; the first is what the others are compared with."""
    by_url = {target.url: target for target in targets}
    clock = next(each.measured.clock for each in found if each.measured)
    whose = "the servers' own timings" if clock == "engine" else "the clock here: one of them gives no timings"
    print(filled(f"{work.title} (version {work.version}), asked in turns, by {whose}."))
    head = ("SERVER", "MODEL", "TOKENS/S", "FIRST TOKEN", "ACCEPTED", "AGAINST THE FIRST")
    print_table(
        [head, *(_standing(each, by_url[each.name], first=each is found[0]) for each in found)], right=(2, 3, 4)
    )
    print(filled(LEVEL, "  "))
    for each in found:
        if each.error:
            print(filled(f"{each.name}: {one_line(each.error)}"))


def _standing(each: Standing, target: Target, *, first: bool) -> tuple[str, ...]:
    found = each.measured
    decode, interval = (found.decode, found.interval) if found else (None, None)
    spread = plus_minus(interval) if interval else ""
    began = found.first_token if found else None
    drafts = found.acceptance if found else None
    return (
        f"{each.name} ({target.environment.engine})",
        one_line(target.environment.model.words),
        f"{decode.mean:.1f}{spread}" if decode else _UNKNOWN,
        f"{began.mean:.3f} s" if began else _UNKNOWN,
        percent(drafts.rate) if drafts else _UNKNOWN if found and found.clock == "wall" else "no drafts",
        "" if first else _against(each),
    )


def _against(each: Standing) -> str:
    ratio = each.ratio
    if ratio is None:
        return "" if each.error else "not known: too few rounds, 3 are the least (--runs)"
    figures = f"{ratio.estimate:.2f} times as fast ({ratio.low:.2f} to {ratio.high:.2f})"
    return figures if ratio.low > 1 or ratio.high < 1 else f"not distinguishable: {figures}"


def standing_json(each: Standing, target: Target) -> dict[str, Any]:
    """Return one server's line for programs."""
    found = each.measured
    drafts = found.acceptance if found else None
    return {
        "url": each.name,
        "engine": {"name": target.environment.engine, "version": target.environment.engine_version},
        "model": target.environment.model.name,
        "clock": found.clock if found else None,
        "mean": rounded(found.decode.mean, 3) if found and found.decode else None,
        "stdev": rounded(found.decode.stdev, 3) if found and found.decode else None,
        "prefill": rounded(found.prefill.mean, 3) if found and found.prefill else None,
        "first_token_s": rounded(found.first_token.mean, 4) if found and found.first_token else None,
        "acceptance": rounded(drafts.rate, 4) if drafts else None,
        "ratio": each.ratio and {name: rounded(value, 4) for name, value in each.ratio.as_json().items()},
        "error": each.error,
        "runs": [_run_json(run) for run in found.runs] if found else [],
    }
