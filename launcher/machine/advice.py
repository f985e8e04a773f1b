"""What a person could do so that this computer runs models better, from facts alone."""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass

from launcher.machine.disks import Disk
from launcher.machine.gpus import Undriven
from launcher.machine.host import Host
from launcher.machine.machine import Machine
from launcher.machine.wsl import WslSettings
from launcher.machine.wsl_suggestion import RESTART, WHERE, memory_for_wsl

_GIB = 2**30
_OFFLOAD_GIB = 12
"""Half of the experts of Qwen3.6-35B-A3B in a file of 21 GB take 8.8 GiB of host memory, as the engine itself says."""
_NEEDS_OFFLOAD_GIB = 23
"""A GPU with more memory (a card of 24 GB) holds such a model whole."""


@dataclass(frozen=True, slots=True)
class Advice:
    """Something worth knowing, and what to do about it."""

    title: str
    hint: str


def advise(machine: Machine, settings: Sequence[WslSettings] = (), disks: Sequence[Disk] = ()) -> tuple[Advice, ...]:
    """Return all advice on the GPUs, WSL, the disks and the power. `settings` are WSL's files, `disks` the models'."""
    return (*_gpus(machine), *_wsl(machine, settings), *_disks(machine.host, disks), *_power(machine.host))


def _gpus(machine: Machine) -> Iterator[Advice]:
    for card in machine.undriven:
        yield Advice(f"The {card.name} is there and cannot be used: {card.reason}", _driver_hint(card, machine.host))
    for failure in machine.failures:
        yield Advice(failure, "When it stays so after a restart, see what `sudo dmesg` says of it.")
    for gpu in machine.gpus:
        if gpu.asleep:
            yield Advice(
                f"The {gpu.name} sleeps, and was not woken to be looked at.",
                "`mtp-launcher doctor --wake` wakes it; a server wakes it by itself.",
            )


def _driver_hint(card: Undriven, host: Host) -> str:
    if card.kernel_driver == "vfio-pci":
        return "It is set aside for a virtual machine. Give it back to use it here."
    if host.container is not None:
        if card.vendor == "nvidia":
            return "Start the container with it (--gpus all; the host needs the NVIDIA Container Toolkit)."
        return "Start the container with it (--device /dev/dri, for ROCm also --device /dev/kfd)."
    if card.kernel_driver == "nvidia":
        return "Restart the computer: its kernel may hold an older driver. If it stays so, install the driver anew."
    if card.vendor == "nvidia":
        return (
            "Install NVIDIA's driver and restart: `sudo apt-get install nvidia-driver` on Debian with non-free, "
            "`sudo ubuntu-drivers install` on Ubuntu."
        )
    module = {"amd": "amdgpu", "intel": "i915 or xe"}.get(card.vendor, "its own")
    return f"The kernel's driver for it is {module}. A newer kernel or its firmware package may be what is missing."


def _wsl(machine: Machine, settings: Sequence[WslSettings]) -> Iterator[Advice]:
    host = machine.host
    if host.wsl == 1:
        yield Advice(
            "This is WSL 1, which has no GPU.",
            "In Windows: `wsl --list` names this distribution, `wsl --set-version NAME 2` converts it.",
        )
    if host.wsl != 2:
        return
    if not machine.gpus:
        yield _no_gpu_in_wsl(machine, settings)
    for file in settings:
        for unknown in file.unknown:
            asks_for_video_memory = unknown.name.lower().endswith("gpumemory")
            why = "WSL does not divide the GPU's memory: all of it can be used." if asks_for_video_memory else ""
            yield Advice(
                f"{file.path} line {unknown.line}: WSL knows no setting {unknown.name} and skips it.",
                f"{why} Delete the line.".lstrip(),
            )
    yield from _memory_in_wsl(machine, settings)


def _no_gpu_in_wsl(machine: Machine, settings: Sequence[WslSettings]) -> Advice:
    off = next((file for file in settings if file.values.get("wsl2.gpusupport", "").lower() in {"false", "0"}), None)
    if off is not None:
        return Advice(f"{off.path} keeps the GPU from WSL: gpuSupport is off.", f"Delete the line. {RESTART}")
    if not machine.host.wsl_gpu:
        return Advice(
            "WSL offers no GPU here: there is no /dev/dxg.",
            f"Install the GPU's driver in Windows, then run `wsl --update` there. {RESTART}",
        )
    return Advice(
        f"WSL offers a GPU, but none was found: {machine.no_gpu_because}",
        "Install or update the NVIDIA driver in Windows, and none inside WSL: Windows lends it its own.",
    )


def _memory_in_wsl(machine: Machine, settings: Sequence[WslSettings]) -> Iterator[Advice]:
    """Advise more memory when the GPU is too small for large models, and WSL too small for what it would leave."""
    largest = max((gpu.memory_bytes or 0 for gpu in machine.gpus), default=0)
    memory = machine.host.memory_bytes
    if not 0 < largest < _NEEDS_OFFLOAD_GIB * _GIB or memory >= _OFFLOAD_GIB * _GIB:
        return
    where = next((str(file.path) for file in settings), WHERE)
    set_to = next((value for file in settings if (value := file.values.get("wsl2.memory", "0")) != "0"), None)
    if set_to is not None:
        hint = f"In {where}, raise memory={set_to} below [wsl2] as far as Windows can spare. {RESTART}"
    elif (wanted := memory_for_wsl(memory)) > memory / _GIB + 0.5:
        hint = f"In {where}, set memory={wanted}GB below [wsl2]. {RESTART}"
    else:
        hint = "Windows needs the rest of this computer's: take a model that the GPU holds whole."
    yield Advice(
        f"WSL has {memory / _GIB:.1f} GiB of memory: too little for the parts of a large model that a GPU of "
        f"{largest / _GIB:.0f} GiB leaves to the processor.",
        hint,
    )


def _disks(host: Host, disks: Sequence[Disk]) -> Iterator[Advice]:
    for disk in disks:
        if host.wsl is not None and disk.holds_windows_files:
            yield Advice(
                f"{disk.folder} lies on a drive of Windows, which WSL reads slowly and cannot map into memory.",
                "Keep models in a folder of Linux, such as ~/models: loading is many times faster there.",
            )


def _power(host: Host) -> Iterator[Advice]:
    if host.on_battery:
        yield Advice(
            "This computer runs on its battery, which holds processor and GPU back.",
            "Plug it in, above all to measure.",
        )
