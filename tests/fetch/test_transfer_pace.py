"""The speed limit, the pauses between attempts, and the number of connections."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from launcher.fetch.transfer import (
    ConnectionGrowth,
    SpeedMeter,
    TokenBucket,
    TransferSettings,
    backoff_s,
    retry_pause_s,
)

MB = 10**6


class TestLimit:
    @given(st.lists(st.integers(1, 5 * MB), min_size=1, max_size=50))
    def test_waiting_as_returned_never_exceeds_the_limit(self, pieces: list[int]) -> None:
        now = [100.0]
        bucket = TokenBucket(MB, now=lambda: now[0])
        for piece in pieces:
            now[0] += bucket.take_bytes(piece)
        assert sum(pieces) / (now[0] - 100.0) <= MB * 1.000001

    def test_a_long_pause_saves_up_a_quarter_second_at_most(self) -> None:
        now = [0.0]
        bucket = TokenBucket(MB, now=lambda: now[0])
        now[0] = 1000.0
        assert bucket.take_bytes(MB) == pytest.approx(0.75)


class TestPauses:
    def test_pauses_double_up_to_a_limit(self) -> None:
        assert [backoff_s(n, 1.0, 60.0, lambda: 1.0) for n in (1, 2, 3, 7, 5000)] == [1, 2, 4, 60, 60]

    @given(st.integers(1, 100), st.floats(0, 1))
    def test_randomness_at_most_halves_a_pause(self, failures: int, chance: float) -> None:
        whole = backoff_s(failures, 1.0, 60.0, lambda: 1.0)
        assert whole / 2 <= backoff_s(failures, 1.0, 60.0, lambda: chance) <= whole

    def test_a_server_may_ask_for_a_longer_pause_up_to_a_limit(self) -> None:
        settings = TransferSettings(backoff_s=1.0, longest_asked_pause_s=600.0)
        assert [retry_pause_s(1, asked_s, settings) for asked_s in (7.0, 600.0, 1e9)] == [7.0, 600.0, 600.0]
        for asked_s in (0.0, None):
            assert 0.5 <= retry_pause_s(1, asked_s, settings) <= 1.0


class TestSpeed:
    def test_the_speed_is_unknown_at_first(self) -> None:
        assert SpeedMeter().sample(0.0, 0) is None

    def test_the_speed_is_that_of_the_last_seconds(self) -> None:
        speed = SpeedMeter(window_s=5.0)
        received = [speed.sample(float(second), MB * min(second, 10)) for second in range(30)]
        assert received[5] == pytest.approx(MB)
        assert received[-1] == 0

    def test_a_restart_has_no_negative_speed(self) -> None:
        speed = SpeedMeter()
        speed.sample(0.0, 10 * MB)
        assert speed.sample(1.0, 0) is None


def count_connections(per_connection: float, line: float, most: int = 8) -> int:
    """Return the number of connections after a minute, for limits of a server per connection and of the line, in
    MB/s."""
    growth, received = ConnectionGrowth(most, settle_s=1.0), 0.0
    for tenth in range(600):
        growth.record_bytes(tenth / 10, int(received), settled=True)
        received += min(line, per_connection * growth.connections) * MB / 10
    return growth.connections


class TestNumberOfConnections:
    def test_connections_grow_to_the_maximum_if_the_server_limits_each(self) -> None:
        assert count_connections(per_connection=30, line=1000) == 8
        assert count_connections(per_connection=30, line=1000, most=6) == 6

    def test_connections_stop_growing_on_a_full_line(self) -> None:
        assert count_connections(per_connection=1000, line=12) == 2

    def test_connections_stop_growing_at_the_bandwidth_of_the_line(self) -> None:
        assert count_connections(per_connection=30, line=60) == 4

    def test_a_fast_connection_stays_alone(self) -> None:
        assert count_connections(per_connection=500, line=10_000) == 1

    def test_connections_are_not_judged_before_all_have_received_data(self) -> None:
        growth = ConnectionGrowth(8, settle_s=1.0)
        for second in range(10):
            growth.record_bytes(float(second), second * MB, settled=False)
        assert growth.connections == 1

    def test_stop_is_final(self) -> None:
        growth = ConnectionGrowth(8, settle_s=1.0)
        growth.stop_growing(0)
        for second in range(10):
            growth.record_bytes(float(second), second * MB, settled=True)
        assert growth.connections == 1
