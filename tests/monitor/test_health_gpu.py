"""Throttling, other programs in the GPU's memory, and a GPU that nothing runs on."""

import pytest

from launcher.base.action import ActionKind
from launcher.machine import nvidia
from launcher.machine.gpu import GpuProcess
from launcher.monitor.health import HARDWARE, HOT, POWER, Health
from launcher.monitor.health_event import FindingCode, FindingLevel, ServerSetup
from tests.monitor.series import GIB, activity, list_changes, repeat_moment, run

ENGINE, BROWSER, GAME = 4711, 800, 900
CARD = ServerSetup(engine_pid=ENGINE, vram_total_mib=16_311.0)


def test_throttle_reasons_are_spelled_as_the_driver_module_does() -> None:
    assert set(nvidia._THROTTLE_REASONS.values()) >= HOT | HARDWARE | POWER


class TestThrottling:
    """An RTX 5090M at work: 2,400 MHz and 78 degrees; too hot, 1,500 MHz and 87."""

    def work(self, count: int, start_s: float = 0.0, *, reasons: tuple[str, ...] = (), **what: object) -> list[object]:
        figures = {"gpu_clock_mhz": 2_400.0, "gpu_temperature_c": 78.0, "gpu_power_w": 160.0, "generating": True}
        return list(repeat_moment(count, start_s, activity=activity(reasons), **(figures | what)))

    def hot(self, count: int, start_s: float) -> list[object]:
        reasons = ("temperature (hardware)", "hardware slowdown")
        return self.work(count, start_s, reasons=reasons, gpu_clock_mhz=1_500.0, gpu_temperature_c=87.0)

    def test_heat_is_raised_within_ten_seconds_and_cleared(self) -> None:
        health = Health(CARD)
        events = run(health, self.work(10) + self.hot(20, 20.0) + self.work(15, 60.0))
        assert list_changes(events) == [(FindingCode.THROTTLED_HOT, True), (FindingCode.THROTTLED_HOT, False)]
        raised = events[0]
        assert raised.time_s - 20.0 <= 10
        assert raised.finding.level is FindingLevel.WARNING
        assert (
            raised.finding.sentence
            == "The GPU slows down because it is too hot at 87 °C: 1500 MHz instead of 2400 MHz."
        )
        assert raised.finding.evidence["reasons"] == "temperature (hardware), hardware slowdown"
        assert health.open_findings == ()

    def test_a_short_hot_moment_is_no_finding(self) -> None:
        spikes = [each for start in range(0, 200, 20) for each in self.hot(3, start) + self.work(7, start + 6)]
        assert run(Health(CARD), spikes) == []

    def test_an_idle_gpu_raises_nothing(self) -> None:
        idle = repeat_moment(50, generating=False, activity=activity(("temperature (driver)",)), gpu_clock_mhz=300.0)
        assert run(Health(CARD), idle) == []

    def test_a_limited_laptop_at_full_clock_is_information(self) -> None:
        warm = self.work(30, reasons=("temperature (driver)",), gpu_clock_mhz=2_350.0)
        (event,) = run(Health(CARD), self.work(3, -10.0) + warm)
        assert (event.finding.code, event.finding.level) == (FindingCode.THROTTLED_HOT, FindingLevel.INFORMATION)

    def test_hardware_slowdown_is_distinguished_from_heat(self) -> None:
        brake = self.work(20, 20.0, reasons=("hardware slowdown", "power brake"), gpu_clock_mhz=700.0)
        (event,) = run(Health(CARD), self.work(10) + brake)
        assert event.finding.code is FindingCode.THROTTLED_HARDWARE
        assert "power supply" in event.finding.sentence

    def test_a_power_limit_at_full_clock_is_no_finding(self) -> None:
        assert run(Health(CARD), self.work(200, reasons=("power limit",), gpu_clock_mhz=2_100.0)) == []

    @pytest.mark.parametrize(("on_battery", "words"), [(True, "On battery"), (False, "The power limit of 60 W")])
    def test_a_costly_power_limit_is_information(self, on_battery: bool, words: str) -> None:
        low = self.work(
            30, 20.0, reasons=("power limit",), gpu_clock_mhz=900.0, gpu_power_limit_w=60.0, on_battery=on_battery
        )
        (event,) = run(Health(CARD), self.work(10) + low)
        assert (event.finding.code, event.finding.level) == (FindingCode.THROTTLED_POWER, FindingLevel.INFORMATION)
        assert event.finding.sentence.startswith(words)

    def test_unreported_throttling_raises_nothing(self) -> None:
        assert (
            run(Health(CARD), repeat_moment(50, generating=True, activity=activity(None, None), gpu_clock_mhz=300.0))
            == []
        )

    def test_counts_restart_after_sleep(self) -> None:
        moments = self.work(10) + self.hot(4, 20.0) + self.hot(4, 4_000.0)
        assert run(Health(CARD), moments) == []


def programs(**used_mib: int | None) -> tuple[GpuProcess, ...]:
    pids = {"engine": ENGINE, "browser": BROWSER, "game": GAME}
    return tuple(GpuProcess(pids[name], name, None if mib is None else mib * 2**20) for name, mib in used_mib.items())


class TestVramPressure:
    """14,600 of 16,311 MiB are the engine's, as for 35B-A3B in IQ3_S."""

    def test_a_program_that_uses_the_remaining_memory_is_named(self) -> None:
        before = repeat_moment(10, vram_used_mib=15_000.0, activity=activity((), programs(engine=14_600, browser=300)))
        now = programs(engine=14_600, browser=350, game=1_200)
        after = repeat_moment(10, 20.0, vram_used_mib=16_250.0, activity=activity((), now))
        free = repeat_moment(
            10, 40.0, vram_used_mib=15_000.0, activity=activity((), programs(engine=14_600, browser=300))
        )
        events = run(Health(CARD), before + after + free)
        assert list_changes(events) == [(FindingCode.VRAM_PRESSURE, True), (FindingCode.VRAM_PRESSURE, False)]
        found = events[0].finding
        assert found.sentence == (
            "game and browser took 1250 MiB of GPU memory since the model was loaded; 61 MiB left."
        )
        assert found.action is not None
        assert found.action.kind is ActionKind.FREE_MEMORY

    def test_without_a_process_list_other_programs_are_inferred(self) -> None:
        hidden = activity((), programs(engine=None, game=None))
        before = repeat_moment(10, vram_used_mib=15_000.0, activity=hidden)
        (event,) = run(Health(CARD), before + repeat_moment(10, 20.0, vram_used_mib=16_250.0, activity=hidden))
        assert event.finding.sentence.startswith("Other programs probably took 1250 MiB")
        assert event.finding.sentence.endswith("Programs on the GPU: game.")

    def test_a_model_that_fills_the_card_is_no_finding(self) -> None:
        full = activity((), programs(engine=15_900, browser=300))
        assert run(Health(CARD), repeat_moment(50, vram_used_mib=16_250.0, activity=full)) == []

    def test_growth_of_the_engine_is_not_attributed_to_others(self) -> None:
        before = repeat_moment(10, vram_used_mib=15_700.0, activity=activity((), programs(engine=15_300, browser=300)))
        grown = activity((), programs(engine=15_850, browser=300))
        assert run(Health(CARD), before + repeat_moment(10, 20.0, vram_used_mib=16_250.0, activity=grown)) == []

    def test_others_may_use_memory_while_enough_is_free(self) -> None:
        before = repeat_moment(10, vram_used_mib=9_000.0, activity=activity((), programs(engine=8_600, browser=300)))
        game = activity((), programs(engine=8_600, game=6_000))
        assert run(Health(CARD), before + repeat_moment(10, 20.0, vram_used_mib=15_600.0, activity=game)) == []

    def test_an_engine_in_a_container_is_not_confused_with_a_host_process(self) -> None:
        stranger = GpuProcess(ENGINE, None, 14 * GIB)
        before = repeat_moment(5, vram_used_mib=15_000.0, activity=activity((), (stranger,)))
        (event,) = run(
            Health(CARD), before + repeat_moment(5, 10.0, vram_used_mib=16_250.0, activity=activity((), (stranger,)))
        )
        assert "probably" in event.finding.sentence


class TestGpuUnused:
    def test_a_gpu_build_that_found_no_gpu_is_raised_at_once(self) -> None:
        setup = ServerSetup(expects_gpu=True, sees_gpu=False, on_gpu=False)
        (event,) = run(Health(setup), repeat_moment(50))
        assert event.finding.code is FindingCode.GPU_UNUSED
        assert event.time_s <= 6
        assert event.finding.sentence == "The engine is a GPU build but runs on the CPU: it found no GPU."
        assert event.finding.action is not None
        assert event.finding.action.kind is ActionKind.OTHER_ENGINE_BUILD

    @pytest.mark.parametrize(
        "setup",
        [
            ServerSetup(expects_gpu=False, on_gpu=False),
            ServerSetup(expects_gpu=None, on_gpu=None),
            ServerSetup(expects_gpu=True, on_gpu=None),
            ServerSetup(expects_gpu=True, sees_gpu=True, on_gpu=True, weights_mib=None),
        ],
    )
    def test_unknown_or_intended_cpu_use_is_not_raised(self, setup: ServerSetup) -> None:
        assert run(Health(setup), repeat_moment(50, vram_used_mib=10.0)) == []

    def test_layers_only_claimed_to_be_on_the_gpu_are_raised(self) -> None:
        setup = ServerSetup(engine_pid=ENGINE, expects_gpu=True, on_gpu=True, weights_mib=14_000.0)
        gone = repeat_moment(5, vram_used_mib=700.0, activity=activity((), programs(browser=600)))
        there = repeat_moment(
            5, 10.0, vram_used_mib=15_000.0, activity=activity((), programs(browser=600, engine=14_300))
        )
        assert list_changes(run(Health(setup), gone + there)) == [
            (FindingCode.GPU_UNUSED, True),
            (FindingCode.GPU_UNUSED, False),
        ]

    def test_memory_hidden_by_windows_is_unknown(self) -> None:
        setup = ServerSetup(engine_pid=ENGINE, expects_gpu=True, on_gpu=True, weights_mib=14_000.0)
        assert run(Health(setup), repeat_moment(50, activity=activity((), programs(engine=None)))) == []
        assert (
            run(Health(setup), repeat_moment(50, vram_used_mib=15_000.0, activity=activity((), programs(engine=None))))
            == []
        )
