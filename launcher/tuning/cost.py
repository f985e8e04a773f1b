"""What a million tokens cost in electricity, beside a price for the same somewhere else."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from launcher.base.errors import BadOption
from launcher.tuning.records import Run

_JOULES_PER_KWH = 3_600_000.0
_MILLION = 1_000_000


@dataclass(frozen=True, slots=True)
class Prices:
    """What a kilowatt-hour costs, and a million reply tokens elsewhere (None: not compared), in the same currency.

    `watts` is the power that the user knows better than the sensors do, from a meter in the socket say.
    """

    kwh: float
    cloud: float | None = None
    watts: float | None = None

    def __post_init__(self) -> None:
        """Raise BadOption for what is no price, or no power."""
        if self.kwh < 0 or (self.cloud is not None and self.cloud < 0):
            raise BadOption("A price is 0 or more.")
        if self.watts is not None and self.watts <= 0:
            raise BadOption("A power is more than 0 W.")


@dataclass(frozen=True, slots=True)
class Cost:
    """What `tokens` reply tokens took, the reading of their prompts included; `measured` by a sensor, else as told."""

    joules: float
    tokens: int
    prices: Prices
    measured: bool

    @property
    def joules_per_token(self) -> float:
        """Energy a token."""
        return self.joules / self.tokens

    @property
    def kwh_per_million(self) -> float:
        """Kilowatt-hours a million tokens."""
        return self.joules_per_token * _MILLION / _JOULES_PER_KWH

    @property
    def per_million(self) -> float:
        """Price of the electricity for a million tokens."""
        return self.kwh_per_million * self.prices.kwh

    @property
    def share_of_cloud(self) -> float | None:
        """The electricity's price as a share of the cloud's; None without one, or where that is free."""
        return self.per_million / self.prices.cloud if self.prices.cloud else None

    @property
    def sentence(self) -> str:
        """It in words. Prices have the user's currency, which is not known."""
        whose = "by the GPU's own power sensor" if self.measured else f"at the {self.prices.watts:g} W given"
        said = (
            f"A million tokens take {_digits(self.kwh_per_million)} kWh ({whose}; {_digits(self.joules_per_token)} J"
            f" a token), at {self.prices.kwh:g} a kWh {_digits(self.per_million)}"
        )
        if self.prices.cloud is None:
            return f"{said}."
        if self.share_of_cloud is None:
            return f"{said}; elsewhere they are free."
        times = 1 / self.share_of_cloud if 0 < self.share_of_cloud < 1 else self.share_of_cloud
        if not self.share_of_cloud:
            compared = "nothing here"
        elif 0.995 <= self.share_of_cloud <= 1.005:
            compared = "the same"
        else:
            compared = f"{_digits(times)} times as much {'there' if self.share_of_cloud < 1 else 'here'}"
        return f"{said}, against {self.prices.cloud:g} elsewhere: {compared}."

    def as_json(self) -> dict[str, Any]:
        """Return it for programs; prices are in the user's currency."""
        return {
            "joules_per_token": self.joules_per_token,
            "kwh_per_million_tokens": self.kwh_per_million,
            "per_million_tokens": self.per_million,
            "price_kwh": self.prices.kwh,
            "cloud_per_million_tokens": self.prices.cloud,
            "share_of_cloud": self.share_of_cloud,
            "power": "sensor" if self.measured else "given",
        }


def cost_of(groups: Sequence[tuple[Sequence[Run], float]], prices: Prices) -> Cost | str:
    """Return what replies cost, or why that is not known.

    A group is of replies that were written at the same time, and the seconds that they took together: its energy is
    counted once. That of a single reply is its own where the bench measured it, else power over its time.
    """
    joules, tokens = 0.0, 0
    for runs, seconds in groups:
        written = sum(run.reply_tokens for run in runs if run.error is None)
        energy = prices.watts * seconds if prices.watts is not None else _energy(runs, seconds)
        if energy is not None and written:
            joules, tokens = joules + energy, tokens + written
    if not tokens:
        written = sum(run.reply_tokens for runs, _ in groups for run in runs)
        if not written:
            return "The cost is not known: nothing was written."
        return "The cost is not known: no sensor here tells the power. Give what a meter shows with --watts."
    return Cost(joules, tokens, prices, measured=prices.watts is None)


def _energy(runs: Sequence[Run], seconds: float) -> float | None:
    if len(runs) == 1 and runs[0].energy_j is not None:
        return runs[0].energy_j
    powers = [run.power_w for run in runs if run.power_w is not None]
    return sum(powers) / len(powers) * seconds if powers else None


def _digits(value: float) -> str:
    """Return three digits that say something, as a plain number."""
    if value >= 100:
        return f"{value:,.0f}"
    if value >= 10:
        return f"{value:.1f}"
    return f"{value:.2f}" if value >= 0.1 or value == 0 else f"{value:.2g}"
