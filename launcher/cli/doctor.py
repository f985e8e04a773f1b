"""`mtp-launcher doctor`: what this machine has, and what is missing."""

from __future__ import annotations

import argparse
from dataclasses import asdict
from typing import TYPE_CHECKING

from launcher.cli.output import print_json

if TYPE_CHECKING:
    from launcher.doctor import Diagnosis

_MIB = 2**20


def configure(_parser: argparse.ArgumentParser) -> None:
    """Declare the verb's options: none."""


async def run(options: argparse.Namespace) -> int:
    """Print the report. Exit code 0 when the demo can run here."""
    from launcher.doctor import diagnose

    report = await diagnose()
    if options.json:
        print_json(_as_json(report))
        return 0 if report.demo_can_run else 1
    host = report.host
    instructions = {True: "AVX2", False: "no AVX2", None: "AVX2 unknown or not applicable"}[host.avx2]
    print(f"System    {host.system}" + (f" (WSL{host.wsl})" if host.wsl else ""))
    print(f"Processor {host.cpu or host.machine}, {host.physical_cores or 'unknown'} cores, {instructions}")
    print(f"Memory    {host.memory_bytes / _MIB:,.0f} MiB")
    for gpu in report.gpus:
        memory = "memory unknown" if gpu.memory_bytes is None else f"{gpu.memory_bytes / _MIB:,.0f} MiB"
        print(f"GPU       {gpu.name}, {memory}, driver {gpu.driver or 'unknown'}")
    if report.no_gpu_because:
        print(f"GPU       no NVIDIA GPU: {report.no_gpu_because}")
    for engine in report.engines:
        if engine.build is None:
            print(f"Engine    {engine.place}: cannot be used")
        else:
            devices = ", ".join(device.description for device in engine.devices) or "processor only"
            print(f"Engine    {engine.place}: {engine.build.version}, {devices}")
    print(f"Display   {host.display or 'none'}")
    for finding in report.findings:
        print(f"\n{finding.title}\n  {finding.hint}")
    print("\nThe demo can run." if report.demo_can_run else "\nThe demo cannot run yet.")
    return 0 if report.demo_can_run else 1


def _as_json(report: Diagnosis) -> dict[str, object]:
    return {
        "demo_can_run": report.demo_can_run,
        "host": asdict(report.host),
        "gpus": [asdict(gpu) for gpu in report.gpus],
        "no_gpu_because": report.no_gpu_because,
        "engines": [
            {
                "place": engine.place,
                "version": engine.build.version if engine.build else None,
                "devices": [asdict(device) for device in engine.devices],
                "error": engine.error.title if engine.error else None,
            }
            for engine in report.engines
        ],
        "missing_libraries": [asdict(library) for library in report.missing],
        "findings": [asdict(finding) for finding in report.findings],
    }
