"""Measures one check of all detectors, with a full history and with data for each of them."""

import os
import tempfile
import time
from pathlib import Path

from benchmarks.reference import Interpreter
from benchmarks.report import Row
from launcher.engine.server.logs import LogBook
from launcher.machine.gpu import READINGS, Reading
from launcher.machine.gpus import GpuSensors
from launcher.monitor.health_watch import HealthWatch
from launcher.monitor.meter import ReplyMeter
from launcher.monitor.monitor import MonitorPeriods
from launcher.monitor.series import SPAN_S, Series

_CHECKS = 200
_PERIOD_S, _SAMPLE_S = HealthWatch().period_s, MonitorPeriods().generating_s
_SAMPLES = round(SPAN_S / _SAMPLE_S)
_SAMPLES_PER_CHECK = 20
_LIMIT_STARTS_PER_S = 0.063


def run(*, quick: bool) -> list[Row]:
    """Run the detectors repeatedly with a simulated clock; only processor time is measured."""
    bare, shares = Interpreter(), []
    for _ in range(3 if quick else 10):
        bare.start(3)
        shares.append(_measure_share())
    return [
        bare.share_row(
            f"own processor time of the detectors, one check every {_PERIOD_S:.0f} s",
            shares,
            4,
            _LIMIT_STARTS_PER_S,
            worst=True,
        ),
    ]


def _measure_share() -> float:
    gpu, watch = GpuSensors(), HealthWatch()
    series = {name: Series(name) for name in READINGS}
    for name in READINGS:
        for index in range(_SAMPLES):
            series[name].add(index * _SAMPLE_S, Reading(50.0))
    with tempfile.TemporaryDirectory(prefix="mtp-benchmark-") as folder:
        log = LogBook(Path(folder) / "engine.log")
        gpu.sample(engine_runs=True)
        spent_s, now_s = 0.0, SPAN_S
        for _ in range(_CHECKS):
            for name in READINGS:
                for index in range(_SAMPLES_PER_CHECK):
                    series[name].add(now_s + index * _SAMPLE_S, Reading(50.0))
            now_s += _PERIOD_S
            began_s = time.process_time()
            meter = ReplyMeter()
            watch.reply_started(meter, now_s)
            sensed = watch.read_machine(gpu, os.getppid(), None, log)
            watch.run_detectors(now_s, sensed, series)
            watch.reply_ended(meter, now_s)
            spent_s += time.process_time() - began_s
        log.close()
        gpu.close()
    return 100 * spent_s / (_CHECKS * _PERIOD_S)
