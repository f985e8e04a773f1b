"""Fit the factors of the speed forecast to published runs, by least squares of the errors' logarithms.

Far errors count less than their square. A factor that is far from its usual value costs as well, so that one with few
runs stays near it; the usual fixed time of a layer is that of the same kind of GPUs, which is fitted too.
"""

import math
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass
from typing import NamedTuple

import numpy as np
import numpy.typing as npt

from launcher.models.drafters import MTP
from launcher.models.evidence import accepted_shares, tokens_per_pass
from launcher.models.pass_time import COMMON, GENERATIONS, CommonFactors, GenerationFactors, token_rate
from tools.speed_accuracy.runs import Run

Vector = npt.NDArray[np.float64]
_USUAL_ERROR = 0.1
_STEP, _ROUNDS = 1e-4, 12
_KINDS = {
    "ada": "consumer",
    "ampere": "consumer",
    "apu": "amd",
    "blackwell": "consumer",
    "ga100": "data centre",
    "gb10": "consumer",
    "gb100": "data centre",
    "gp100": "old",
    "hopper": "data centre",
    "pascal": "old",
    "rdna3": "amd",
    "rdna4": "amd",
    "turing": "consumer",
    "volta": "data centre",
    "xe2": "intel",
}
_KIND_LAYER_US = {"consumer": 60.0, "data centre": 130.0, "old": 220.0, "amd": 110.0, "intel": 200.0}
"""Usual fixed time of a layer by kind of GPU, in microseconds, and below its spread as a logarithm."""
_KIND_SPREAD = 0.5
_BANDWIDTH, _COMPUTE = {"data centre": 0.7}, {"amd": 0.13}
_USUAL = GenerationFactors(0.8, 1.0, 0.25)
"""Usual factors of a generation: `layer_us` as a multiple of its kind's. Kinds that differ are in the tables above."""
_SPREADS = GenerationFactors(0.12, 0.15, 0.3)
_COMMON_USUAL = {
    "codebook": (0.25, 0.7),
    "packed": (0.1, 0.7),
    "recurrent": (2.0, 0.6),
    "routed": (2.0, 0.6),
    "normed": (1.4, 0.5),
    "width": (0.2, 0.7),
    "head": (2.0, 0.5),
    "more_experts": (0.75, 0.1),
    "routed_us": (20.0, 0.7),
    "attention": (0.07, 0.3),
    "converted": (2.0, 0.3),
    "watts": (0.6, 0.3),
    "watts_compute": (0.6, 0.3),
}
"""Usual value of each common factor, and its spread as a logarithm. The others are not fitted."""


@dataclass(frozen=True, slots=True)
class Factors:
    """All fitted factors."""

    generations: dict[str, GenerationFactors]
    common: CommonFactors

    def forecast(self, run: Run) -> float:
        """Return the forecast of a run, in tokens per second."""
        return token_rate(
            run.work,
            run.draft,
            (run.card,),
            (1.0,),
            cache=run.cache,
            power_limit_w=run.power_w,
            generations=self.generations,
            common=self.common,
        )

    def error(self, run: Run) -> float:
        """Return the logarithm of a forecast as a multiple of the run's rate, by the run's own acceptance if known."""
        found = self.forecast(run)
        if run.accepted is not None and not float(run.row["p_min"] or 0):
            found *= (1 + run.draft * run.accepted) / tokens_per_pass(accepted_shares(MTP), run.draft)
        return math.log(found / run.rate)


SHIPPED = Factors(dict(GENERATIONS), COMMON)


class _Place(NamedTuple):
    """A fitted factor: of a generation, of a kind of GPUs, or common to all (with an empty `owner`)."""

    owner: str
    name: str
    usual: float
    spread: float


def _list_places() -> list[_Place]:
    kinds = [_Place(kind, "kind", value, _KIND_SPREAD) for kind, value in _KIND_LAYER_US.items()]
    common = [_Place("", name, *usual) for name, usual in _COMMON_USUAL.items()]
    own = [
        place
        for name, kind in _KINDS.items()
        for place in (
            _Place(name, "bandwidth", _BANDWIDTH.get(kind, _USUAL.bandwidth), _SPREADS.bandwidth),
            _Place(name, "layer", _USUAL.layer_us, _SPREADS.layer_us),
            _Place(name, "compute", _COMPUTE.get(kind, _USUAL.compute), _SPREADS.compute),
        )
    ]
    return kinds + common + own


_PLACES = _list_places()
_BEGIN = np.array([math.log(each.usual) for each in _PLACES])
_SPREAD = np.array([each.spread for each in _PLACES])


def _to_factors(logarithms: Vector) -> Factors:
    value = {(place.owner, place.name): math.exp(each) for place, each in zip(_PLACES, logarithms, strict=True)}
    return Factors(
        {
            name: GenerationFactors(
                value[name, "bandwidth"], value[kind, "kind"] * value[name, "layer"], value[name, "compute"]
            )
            for name, kind in _KINDS.items()
        },
        COMMON._replace(**{name: value["", name] for name in _COMMON_USUAL}),
    )


def _concerned(place: _Place, runs: Sequence[Run]) -> list[int]:
    """Return the places of the runs whose forecast depends on a factor."""
    return [
        each
        for each, run in enumerate(runs)
        if not place.owner or place.owner in (run.card.generation, _KINDS[run.card.generation])
    ]


def _fit(runs: Sequence[Run], begin: Vector, rounds: int) -> Vector:
    """Return the logarithms of the factors that fit best, from `begin`, by Gauss-Newton steps."""
    sizes = Counter(run.origin for run in runs)
    weight = np.array([sizes[run.origin] ** -0.5 for run in runs]) / _USUAL_ERROR**2
    concerned = [_concerned(place, runs) for place in _PLACES]
    found = begin.copy()
    for _ in range(rounds):
        factors = _to_factors(found)
        errors = np.array([factors.error(run) for run in runs])
        slopes = np.zeros((len(runs), len(_PLACES)))
        for column, places in enumerate(concerned):
            moved = found.copy()
            moved[column] += _STEP
            near = _to_factors(moved)
            for row in places:
                slopes[row, column] = (near.error(runs[row]) - errors[row]) / _STEP
        robust = weight / np.sqrt(1 + weight * errors**2)
        matrix = slopes.T @ (slopes * robust[:, None]) + np.diag(_SPREAD**-2)
        gradient = slopes.T @ (robust * errors) + (found - _BEGIN) / _SPREAD**2
        found = found - np.clip(np.linalg.solve(matrix, gradient), -0.5, 0.5)
    return found


def fit_factors(runs: Sequence[Run]) -> Factors:
    """Return the factors that fit `runs` best. Runs of one origin weigh as the square root of their number."""
    return _to_factors(_fit(runs, _BEGIN, _ROUNDS))


def forecast_left_out(runs: Sequence[Run]) -> list[float]:
    """Return the forecast of each run by factors that were fitted without the runs of its origin."""
    best = _fit(runs, _BEGIN, _ROUNDS)
    forecasts = [0.0] * len(runs)
    for origin in dict.fromkeys(run.origin for run in runs):
        factors = _to_factors(_fit([run for run in runs if run.origin != origin], best, 3))
        for place, run in enumerate(runs):
            if run.origin == origin:
                forecasts[place] = factors.forecast(run)
    return forecasts
