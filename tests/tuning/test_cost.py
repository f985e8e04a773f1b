"""Cost of electricity from given figures, and the sentences if a figure is missing."""

import pytest

from launcher.base.codec import to_json
from launcher.base.errors import BadOption
from launcher.tuning.cost import Cost, Prices, calculate_cost
from launcher.tuning.records import Run


def run(tokens: int, seconds: float, **figures: float | str) -> Run:
    return Run("code", {}, 0.0, seconds, reply_tokens=tokens, decode_rate=100.0, **figures)  # type: ignore[arg-type]


def test_a_million_tokens_at_300_watts_and_100_tokens_a_second() -> None:
    """300 W for 10,000 s are 3 MJ: 0.8333 kWh, at 0.30 a kWh 0.25."""
    result = calculate_cost([((run(1_000, 10.0, power_w=300.0),), 10.0)], Prices(0.30, 0.60))
    assert isinstance(result, Cost)
    assert result.measured
    assert result.joules_per_token == pytest.approx(3.0)
    assert result.kwh_per_million == pytest.approx(0.833333, rel=1e-5)
    assert result.per_million == pytest.approx(0.25)
    assert result.share_of_cloud == pytest.approx(0.41667, rel=1e-4)
    assert result.sentence == (
        "A million tokens take 0.83 kWh (3.00 J a token, by the GPU's own power sensor), which cost 0.25 at 0.3 a kWh."
        " In the cloud they cost 0.6, 2.40 times as much."
    )
    assert to_json(result)["per_million_tokens"] == pytest.approx(0.25)


def test_measured_energy_goes_before_power_over_time() -> None:
    result = calculate_cost([((run(100, 10.0, power_w=300.0, energy_j=50.0),), 10.0)], Prices(0.30))
    assert isinstance(result, Cost)
    assert result.joules == 50.0
    assert result.share_of_cloud is None
    assert result.sentence.endswith("which cost 0.042 at 0.3 a kWh.")


def test_streams_share_the_energy_of_their_time() -> None:
    """Four simultaneous streams each report the power of the whole GPU; the energy must not be counted four times."""
    runs = tuple(run(100, 9.0, power_w=200.0, energy_j=1_800.0) for _ in range(4))
    result = calculate_cost([(runs, 10.0)], Prices(0.30))
    assert isinstance(result, Cost)
    assert (result.joules, result.tokens) == (2_000.0, 400)


def test_power_given_by_the_user_goes_before_sensors() -> None:
    result = calculate_cost([((run(100, 5.0, power_w=100.0, energy_j=500.0),), 10.0)], Prices(0.25, 0.01, watts=400.0))
    assert isinstance(result, Cost)
    assert result.joules == 4_000.0
    assert not result.measured
    assert "at the 400 W given" in result.sentence
    assert result.sentence.endswith("In the cloud they cost 0.01; here 278 times as much.")


@pytest.mark.parametrize(
    ("prices", "end"),
    [
        (Prices(0.36, 3.0, 300), "In the cloud they cost 3, 10.0 times as much."),
        (Prices(0.36, 0.3, 300), "In the cloud they cost the same."),
        (Prices(0.36, 0.0, 300), "In the cloud they are free."),
        (Prices(0.0, 1.0, 300), "In the cloud they cost 1."),
    ],
)
def test_the_comparison_is_described_in_words(prices: Prices, end: str) -> None:
    result = calculate_cost([((run(100, 1.0),), 1.0)], prices)
    assert isinstance(result, Cost)
    assert result.sentence.endswith(end)


def test_unknown_costs_are_reported_and_not_0() -> None:
    result = calculate_cost([((run(100, 1.0),), 1.0)], Prices(0.30))
    assert result == "Cost unknown: no power sensor. Enter the reading of a power meter with --watts."
    assert calculate_cost([], Prices(0.30, watts=100)) == "Cost unknown: no tokens were generated."
    failed = run(0, 1.0, power_w=100.0, error="The engine ended.")
    assert calculate_cost([((failed,), 1.0)], Prices(0.30)) == "Cost unknown: no tokens were generated."
    mixed = [((run(100, 1.0, power_w=100.0),), 1.0), ((run(100, 1.0),), 1.0)]
    found = calculate_cost(mixed, Prices(0.30))
    assert isinstance(found, Cost)
    assert (found.joules, found.tokens) == (100.0, 100)


@pytest.mark.parametrize(("kwh", "cloud", "watts"), [(-1.0, None, None), (0.3, -0.1, None), (0.3, None, 0.0)])
def test_invalid_prices_and_powers_are_refused(kwh: float, cloud: float | None, watts: float | None) -> None:
    with pytest.raises(BadOption):
        Prices(kwh, cloud, watts)
