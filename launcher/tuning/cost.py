"""Electricity cost of a million tokens, compared with the price of a cloud service."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import ClassVar

from launcher.base.codec import JsonView
from launcher.base.errors import BadOption
from launcher.base.messages import join_messages, message
from launcher.tuning.records import Run
from launcher.tuning.statistics import mean_of_known

_JOULES_PER_KWH = 3_600_000.0
_MILLION = 1_000_000


@dataclass(frozen=True, slots=True)
class Prices:
    """Prices in the user's currency: of a kilowatt-hour, and of a million reply tokens in the cloud (or None).

    `watts` is a power that the user measured, for example with a meter in the socket; it replaces the sensors.
    """

    kwh: float
    cloud: float | None = None
    watts: float | None = None

    def __post_init__(self) -> None:
        """Raise BadOption for a negative price, or a power of 0 or less."""
        if self.kwh < 0 or (self.cloud is not None and self.cloud < 0):
            raise BadOption(message("The price must be 0 or more."))
        if self.watts is not None and self.watts <= 0:
            raise BadOption(message("The power must be more than 0 W."))


@dataclass(frozen=True, slots=True)
class Cost:
    """Energy of `tokens` reply tokens, including the processing of their prompts.

    `measured` is whether the energy comes from a sensor rather than from the power that the user gave.
    """

    JSON_VIEW: ClassVar[JsonView] = JsonView(
        "joules_per_token kwh_per_million_tokens=kwh_per_million per_million_tokens=per_million price_kwh=prices.kwh "
        "cloud_per_million_tokens=prices.cloud share_of_cloud power"
    )
    joules: float
    tokens: int
    prices: Prices
    measured: bool

    @property
    def joules_per_token(self) -> float:
        """Energy per token in joules."""
        return self.joules / self.tokens

    @property
    def kwh_per_million(self) -> float:
        """Kilowatt-hours per million tokens."""
        return self.joules_per_token * _MILLION / _JOULES_PER_KWH

    @property
    def per_million(self) -> float:
        """Price of the electricity for a million tokens."""
        return self.kwh_per_million * self.prices.kwh

    @property
    def share_of_cloud(self) -> float | None:
        """Price of the electricity divided by that of the cloud. None if the cloud price is unknown or 0."""
        return self.per_million / self.prices.cloud if self.prices.cloud else None

    @property
    def sentence(self) -> str:
        """The cost as a sentence for users, without a currency: only the user knows it."""
        source = (
            message("by the GPU's own power sensor")
            if self.measured
            else message("at the {watts:g} W given", watts=self.prices.watts)
        )
        cost = message(
            "A million tokens take {energy} kWh ({joules} J a token, {source}), which cost {cost} at {kwh:g} a kWh.",
            energy=_significant_digits(self.kwh_per_million),
            joules=_significant_digits(self.joules_per_token),
            source=source,
            cost=_significant_digits(self.per_million),
            kwh=self.prices.kwh,
        )
        return join_messages(cost, self._cloud_sentence)

    @property
    def _cloud_sentence(self) -> str | None:
        cloud, share = self.prices.cloud, self.share_of_cloud
        if cloud is None:
            return None
        if share is None:
            return message("In the cloud they are free.")
        if not share:
            return message("In the cloud they cost {cloud:g}.", cloud=cloud)
        if 0.995 <= share <= 1.005:
            return message("In the cloud they cost the same.")
        if share < 1:
            times = _significant_digits(1 / share)
            return message("In the cloud they cost {cloud:g}, {times} times as much.", cloud=cloud, times=times)
        return message(
            "In the cloud they cost {cloud:g}; here {times} times as much.",
            cloud=cloud,
            times=_significant_digits(share),
        )

    @property
    def power(self) -> str:
        """Where the power is from, for JSON."""
        return "sensor" if self.measured else "given"


def calculate_cost(groups: Sequence[tuple[Sequence[Run], float]], prices: Prices) -> Cost | str:
    """Return the cost of replies, or a sentence that explains why it is unknown.

    A group holds replies that were generated at the same time, and the seconds from the first request to the last end:
    its energy is counted once. The energy of a single reply is the measured one, or else power times its seconds.
    """
    joules, tokens = 0.0, 0
    for runs, seconds in groups:
        generated = sum(run.reply_tokens for run in runs if run.error is None)
        energy = prices.watts * seconds if prices.watts is not None else _measured_energy(runs, seconds)
        if energy is not None and generated:
            joules, tokens = joules + energy, tokens + generated
    if not tokens:
        if not any(run.reply_tokens for runs, _ in groups for run in runs):
            return message("Cost unknown: no tokens were generated.")
        return message("Cost unknown: no power sensor. Enter the reading of a power meter with --watts.")
    return Cost(joules, tokens, prices, measured=prices.watts is None)


def _measured_energy(runs: Sequence[Run], seconds: float) -> float | None:
    """Return the energy of a group in joules. None without a power sensor."""
    if len(runs) == 1 and runs[0].energy_j is not None:
        return runs[0].energy_j
    power_w = mean_of_known(run.power_w for run in runs)
    return power_w * seconds if power_w is not None else None


def _significant_digits(value: float) -> str:
    """Return a number rounded to two or three significant digits, as text."""
    if value >= 100:
        return f"{value:,.0f}"
    if value >= 10:
        return f"{value:.1f}"
    return f"{value:.2f}" if value >= 0.1 or value == 0 else f"{value:.2g}"
