"""Compare the speed forecasts with published runs, and fit their factors to them.

    python -m tools.speed_accuracy          errors of two forecasts: by the shipped factors, and by factors that were
                                            fitted without the runs of the same source and card; and the share of runs
                                            within the range of the second
    python -m tools.speed_accuracy --rows   the same, and every run
    python -m tools.speed_accuracy --fit    the factors that fit all runs best, for launcher/models/pass_time.py

Only runs of llama.cpp itself count, with one card, MTP or no drafts, and drafts of mixed prompts. Rows left out are
counted by reason. The column "left out" is the fair test, because its factors were fitted without the run itself.
"""

import argparse
import math
from collections.abc import Iterable, Sequence
from statistics import median

from launcher.models.speed import RANGES, RangeGroup, range_group
from tools.speed_accuracy.fit import SHIPPED, Factors, fit_factors, forecast_left_out
from tools.speed_accuracy.runs import Run, read_runs

_FILLS = ((4_096, "up to 4K"), (20_000, "4 to 20K"), (40_000, "20 to 40K"), (70_000, "40 to 70K"), (10**9, "above 70K"))
"""Most tokens in the context, by name of the part."""


def main() -> None:
    """Print the comparison."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--fit", action="store_true")
    parser.add_argument("--rows", action="store_true")
    options = parser.parse_args()
    runs, left_out = read_runs()
    print(f"{len(runs)} runs of {sum(left_out.values()) + len(runs)}; left out:")
    for reason, count in left_out.most_common():
        print(f"  {count:4} {reason}")
    if options.fit:
        _print_factors(fit_factors(runs))
        return
    shipped = [SHIPPED.forecast(run) for run in runs]
    without = forecast_left_out(runs)
    print(f"\n{'':32}{'runs':>5}{'shipped':>9}{'left out':>10}{'in range':>10}{'four of five within':>22}")
    for name, places in _parts(runs):
        _print_part(name, places, runs, shipped, without)
    if options.rows:
        for place in sorted(range(len(runs)), key=lambda each: -abs(math.log(without[each] / runs[each].rate))):
            run, row = runs[place], runs[place].row
            print(
                f"{run.card.name:34} {row['model']:18} {row['quant']:14} draft {run.draft} at {run.filled:6} "
                f"{run.rate:7.1f} {without[place]:7.1f} {without[place] / run.rate - 1:+.0%} {row['source'][:40]}"
            )


def group_of(run: Run) -> RangeGroup:
    """Return the group of a run whose forecasts have the same range."""
    return range_group(run.card, mixture=run.work.mixture, drafts=run.draft > 0)


def _parts(runs: Sequence[Run]) -> Iterable[tuple[str, list[int]]]:
    """Yield all runs and parts of them as places in `runs`, with names."""
    places = range(len(runs))
    yield "all", list(places)
    for group in RANGES:
        yield group, [each for each in places if group_of(runs[each]) == group]
    least = 0
    for most, name in _FILLS:
        yield f"{name} tokens filled", [each for each in places if least <= runs[each].filled <= most]
        least = most + 1
    yield "with MTP", [each for each in places if runs[each].draft]
    yield "mixtures with MTP", [each for each in places if runs[each].draft and runs[each].work.mixture]
    yield "without drafts", [each for each in places if not runs[each].draft]
    for generation in sorted({run.card.generation for run in runs}):
        yield generation, [each for each in places if runs[each].card.generation == generation]


def _print_part(
    name: str, places: Sequence[int], runs: Sequence[Run], shipped: Sequence[float], without: Sequence[float]
) -> None:
    if not places:
        return
    errors = [median(abs(one[each] / runs[each].rate - 1) for each in places) for one in (shipped, without)]
    ratios = sorted(runs[each].rate / without[each] for each in places)
    inside = [RANGES[group_of(runs[each])] for each in places]
    share = sum(
        low <= runs[each].rate / without[each] <= high for each, (low, high) in zip(places, inside, strict=True)
    ) / len(places)
    low, high = ratios[len(ratios) // 10], ratios[-1 - len(ratios) // 10]
    within = f"{low:.2f} to {high:.2f}"
    print(f"{name:32}{len(places):5}{errors[0]:9.1%}{errors[1]:10.1%}{share:10.0%}{within:>22}")


def _print_factors(found: Factors) -> None:
    for name, one in sorted(found.generations.items()):
        print(f'    "{name}": GenerationFactors({one.bandwidth:.3f}, {one.layer_us:.1f}, {one.compute:.3f}),')
    for name, value in found.common._asdict().items():
        print(f"    {name}: float = {value:.3g}")


if __name__ == "__main__":
    main()
