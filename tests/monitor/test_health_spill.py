"""GPU memory that spilled into the host's, by counters and by its effects."""

import pytest

from launcher.base.action import ActionKind
from launcher.monitor.health import Health
from launcher.monitor.health_event import FindingCode, Moment, ServerSetup
from tests.monitor.series import list_changes, moment, reply, run

RTX_3090 = ServerSetup(draft=2, vram_total_mib=24_576.0, host_mib=500.0)


def windows_moments(
    count: int, start_s: float = 0.0, *, shared: float, rate: float, used: float = 23_400.0
) -> list[Moment]:
    """Samples two seconds apart, with a reply every ten seconds."""
    return [
        moment(
            start_s + 2 * i,
            gpu_shared_mib=shared,
            vram_used_mib=used,
            generating=True,
            finished=(reply(rate),) if i % 5 == 0 else (),
        )
        for i in range(count)
    ]


class TestCountedByWindows:
    """An RTX 3090 under Windows: a desktop's 115 MiB made it 2.4 times slower."""

    def test_115_mib_at_less_than_half_the_speed(self) -> None:
        spilled = windows_moments(60, 200.0, shared=300.0 + 115.0, rate=63.5 / 2.4)
        back = windows_moments(60, 320.0, shared=300.0, rate=63.5)
        events = run(Health(RTX_3090), windows_moments(100, shared=300.0, rate=63.5) + spilled + back)
        assert list_changes(events) == [(FindingCode.SPILL, True), (FindingCode.SPILL, False)]
        found = events[0].finding
        assert (
            found.sentence == "115 MiB of the GPU's memory have moved to host memory: replies take 2.4 times as long."
        )
        assert found.action is not None
        assert found.action.kind is ActionKind.SMALLER_CONTEXT

    def test_a_spill_at_load_is_found_without_a_fast_reply(self) -> None:
        events = run(Health(RTX_3090), windows_moments(20, shared=2_300.0, rate=12.6))
        assert list_changes(events) == [(FindingCode.SPILL, True)]
        assert events[0].time_s <= 6
        assert events[0].finding.evidence["spilled_mib"] == 1_800

    def test_much_growth_on_a_full_card_needs_no_slow_reply(self) -> None:
        moments = windows_moments(20, shared=300.0, rate=63.5) + [
            moment(40 + 2 * i, gpu_shared_mib=700.0, vram_used_mib=23_400.0) for i in range(10)
        ]
        assert list_changes(run(Health(RTX_3090), moments)) == [(FindingCode.SPILL, True)]

    @pytest.mark.parametrize(
        ("shared", "rate", "used"),
        [
            (330.0, 63.5, 23_400.0),  # staging buffers come and go
            (415.0, 60.0, 23_400.0),  # grew, but nothing is slower
            (900.0, 63.5, 12_000.0),  # half the card is free: nothing had to move
        ],
    )
    def test_values_just_below_the_limits_raise_nothing(self, shared: float, rate: float, used: float) -> None:
        moments = windows_moments(100, shared=300.0, rate=63.5, used=used) + windows_moments(
            200, 200.0, shared=shared, rate=rate, used=used
        )
        assert run(Health(RTX_3090), moments) == []

    def test_intended_use_of_host_memory_is_no_spill(self) -> None:
        """Experts of 35B-A3B on the processor: 9 GB of pinned host memory, as planned."""
        setup = ServerSetup(draft=2, vram_total_mib=16_311.0, host_mib=9_200.0)
        assert run(Health(setup), windows_moments(100, shared=9_400.0, rate=74.0, used=15_900.0)) == []

    def test_gtt_memory_of_a_desktop_is_no_spill(self) -> None:
        moments = [moment(2.0 * i, gtt_used_mib=200.0 + 10 * i, vram_used_mib=23_500.0) for i in range(300)]
        assert run(Health(RTX_3090), moments) == []


def linux_moments(
    count: int, start_s: float = 0.0, *, traffic: float, power: float, rate: float, generating: bool = True
) -> list[Moment]:
    return [
        moment(
            start_s + 2 * i,
            pcie_received_mib_s=traffic,
            gpu_power_w=power,
            generating=generating,
            finished=(reply(rate),) if generating and i % 5 == 0 else (),
        )
        for i in range(count)
    ]


class TestByItsEffects:
    """An RTX 4090 inside WSL: 84 t/s, and about 6 t/s once it spills; the logits of a step are 0.6 MB."""

    def usual(self) -> list[Moment]:
        return linux_moments(100, traffic=60.0, power=310.0, rate=84.0)

    @pytest.mark.parametrize("traffic", [11_000.0, 1_200.0])
    def test_traffic_with_less_power_and_speed_is_a_spill(self, traffic: float) -> None:
        spilled = linux_moments(60, 200.0, traffic=traffic, power=110.0, rate=6.0)
        events = run(
            Health(ServerSetup(draft=2)),
            self.usual() + spilled + linux_moments(60, 320.0, traffic=60.0, power=310.0, rate=84),
        )
        assert list_changes(events) == [(FindingCode.SPILL, True), (FindingCode.SPILL, False)]
        found = events[0].finding
        assert events[0].time_s - 200 <= 10
        assert "seem to have moved" in found.sentence
        assert found.evidence["share_of_usual_power"] == pytest.approx(110 / 310)

    def test_a_drop_of_speed_counts_as_second_sign(self) -> None:
        spilled = linux_moments(200, 200.0, traffic=5_000.0, power=300.0, rate=30.0)
        assert FindingCode.SPILL in [
            code for code, _ in list_changes(run(Health(ServerSetup(draft=2)), self.usual() + spilled))
        ]

    @pytest.mark.parametrize(
        ("traffic", "power", "rate"),
        [
            (9_000.0, 320.0, 84.0),  # a long prompt brings experts over
            (80.0, 150.0, 84.0),  # less power, no traffic
            (900.0, 150.0, 80.0),  # too little traffic
        ],
    )
    def test_one_sign_is_not_enough(self, traffic: float, power: float, rate: float) -> None:
        moments = self.usual() + linux_moments(200, 200.0, traffic=traffic, power=power, rate=rate)
        assert run(Health(ServerSetup(draft=2)), moments) == []

    def test_an_idle_gpu_gives_no_sign(self) -> None:
        idle = linux_moments(200, 200.0, traffic=9_000.0, power=30.0, rate=1.0, generating=False)
        assert run(Health(ServerSetup(draft=2)), self.usual() + idle) == []
