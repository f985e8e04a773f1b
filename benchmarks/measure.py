"""Statistics of measurements, and the duration of a command."""

import math
import statistics
import subprocess
import time
from collections.abc import Sequence
from dataclasses import dataclass

_Z95 = statistics.NormalDist().inv_cdf(0.975)


def format_summary(values: Sequence[float], unit: str, digits: int) -> str:
    """Return "median unit (least-most, n)"."""
    middle, least, most = (f"{f(values):.{digits}f}" for f in (statistics.median, min, max))
    return f"{middle} {unit} ({least} to {most}, n {len(values)})"


def process_seconds(command: Sequence[str]) -> float:
    """Run a command, discard its output, and return the seconds from its start to its end."""
    began_s = time.perf_counter()
    subprocess.run(command, check=True, stdout=subprocess.DEVNULL)
    return time.perf_counter() - began_s


@dataclass(frozen=True, slots=True)
class Interval:
    """An estimate and its 95 % interval."""

    estimate: float
    lower: float
    upper: float


def paired_ratio(numerators: Sequence[float], denominators: Sequence[float]) -> Interval:
    """Return the typical ratio of pairs: the Hodges-Lehmann estimate over the logarithms.

    That is the median of all pairwise means (Walsh averages), with the interval that belongs to it by Wilcoxon's
    signed-rank test. The only assumption about noise is that it favours either side of a pair with equal probability,
    so one disturbed run counts as one run, however large the disturbance.
    """
    logs = typical_value([math.log(above / below) for above, below in zip(numerators, denominators, strict=True)])
    return Interval(*map(math.exp, (logs.estimate, logs.lower, logs.upper)))


def typical_value(values: Sequence[float]) -> Interval:
    """Return the Hodges-Lehmann estimate of values and its interval: see `paired_ratio`."""
    n = len(values)
    walsh = sorted((values[i] + values[j]) / 2 for i in range(n) for j in range(i, n))
    spread = _Z95 * math.sqrt(n * (n + 1) * (2 * n + 1) / 24)
    rank = max(0, math.floor(len(walsh) / 2 - spread))
    return Interval(statistics.median(walsh), walsh[rank], walsh[-1 - rank])
