"""Advice for users on running models better on this computer, derived from its facts."""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace

from launcher.base.messages import Message, command_name, fill_template, join_messages, message
from launcher.machine.disks import Disk
from launcher.machine.gpu import RESIZABLE_BAR_CURE
from launcher.machine.gpus import DRIVERS, UnusableCard
from launcher.machine.host import LINUX_DRIVER, REMOVE_LINUX_DRIVER, Host
from launcher.machine.machine import Machine
from launcher.machine.nvidia import LOST_IN_CONTAINER
from launcher.machine.wsl import RESTART_HINT, WSLCONFIG_PATH, WslSettings, suggest_wsl_memory

_GIB = 2**30
_EXPERTS_ON_HOST_GIB = 12
"""Host memory to keep half of the experts of Qwen3.6-35B-A3B there (8.8 GiB of a 21 GB file, as the engine reports)."""
_WHOLE_MODEL_GIB = 23
"""A GPU with at least this much memory (a 24 GB card) holds the whole model."""


@dataclass(frozen=True, slots=True)
class MachineAdvice:
    """A finding in one sentence, and what to do about it."""

    title: str
    hint: str


def list_advice(
    machine: Machine, wsl_settings: Sequence[WslSettings] = (), disks: Sequence[Disk] = ()
) -> tuple[MachineAdvice, ...]:
    """Return all advice on GPUs, WSL, disks and power. `disks` are those that hold models."""
    return (
        *_advise_on_gpus(machine),
        *_advise_on_wsl(machine, wsl_settings),
        *_advise_on_disks(machine.host, disks),
        *_advise_on_power(machine.host),
    )


def _advise_on_gpus(machine: Machine) -> Iterator[MachineAdvice]:
    if LOST_IN_CONTAINER in (machine.absent.get("nvidia"), *machine.failures):
        hint = message(
            "If this happens again, name its devices when you start it, which keeps them: --gpus all --device"
            " /dev/nvidiactl --device /dev/nvidia-uvm --device /dev/nvidia0."
        )
        yield MachineAdvice(LOST_IN_CONTAINER, hint)
    for card in machine.unusable_cards:
        if card.reason == LOST_IN_CONTAINER:
            continue
        yield MachineAdvice(
            message("The {name} was found but cannot be used: {reason}", name=card.name, reason=card.reason),
            _driver_hint(card, machine.host),
        )
    for failure in machine.failures:
        yield MachineAdvice(failure, message("If this continues after a restart, check the output of `sudo dmesg`."))
    for gpu in machine.gpus:
        if gpu.asleep:
            yield MachineAdvice(
                message("The {name} is asleep and was not woken for this check.", name=gpu.name),
                message("[{command} or ]loading a model wakes it.", command=command_name("doctor --wake")),
            )
        elif gpu.small_bar:
            yield MachineAdvice(
                message(
                    "Resizable BAR is off: the processor reaches only 256 MiB of the {name} at once.", name=gpu.name
                ),
                RESIZABLE_BAR_CURE,
            )


def _driver_hint(card: UnusableCard, host: Host) -> str:
    if card.kernel_driver == "vfio-pci":
        return message("It is reserved for a virtual machine. Release it to use it here.")
    if host.container is not None:
        if card.vendor == "nvidia":
            start = message("Start the container with --gpus all (the host needs the NVIDIA Container Toolkit).")
        else:
            start = message("Start the container with --device /dev/dri (for ROCm also --device /dev/kfd).")
        if card.kernel_driver in DRIVERS[card.vendor]:
            return start
        # A container uses the driver of its host, which no option can replace.
        return join_messages(
            message("The driver is the host's: do this there, not in the container."),
            _driver_hint(card, replace(host, container=None)),
            start,
        )
    if card.kernel_driver == "nvidia":
        return message(
            "Restart the computer: an older driver may still be loaded. If that does not help, reinstall the driver."
        )
    if card.vendor == "nvidia":
        return message(
            "Install NVIDIA's driver and restart: `sudo apt-get install nvidia-driver` on Debian"
            " with non-free, `sudo ubuntu-drivers install` on Ubuntu."
        )
    module = {"amd": "amdgpu", "intel": "i915 or xe"}.get(card.vendor, "its own")
    return message(
        "Its kernel driver is {module}. You may need a newer kernel or firmware package.",
        module=module,
    )


def _advise_on_wsl(machine: Machine, wsl_settings: Sequence[WslSettings]) -> Iterator[MachineAdvice]:
    host = machine.host
    if host.wsl == 1:
        yield MachineAdvice(
            message("This is WSL 1, which has no GPU."),
            message("In Windows, find its name with `wsl --list` and convert it with `wsl --set-version NAME 2`."),
        )
    if host.wsl != 2:
        return
    if host.linux_driver is not None:
        facts = {"file": host.linux_driver}
        yield MachineAdvice(fill_template(LINUX_DRIVER, facts), fill_template(REMOVE_LINUX_DRIVER, facts))
    elif not machine.gpus:
        yield _advise_on_missing_wsl_gpu(machine, wsl_settings)
    for file in wsl_settings:
        for unknown in file.unknown:
            is_gpu_memory = unknown.name.lower().endswith("gpumemory")
            why = message("WSL does not limit the GPU's memory: all of it is usable.") if is_gpu_memory else Message()
            yield MachineAdvice(
                message(
                    "{path} line {line}: WSL has no setting {name} and ignores it.",
                    path=file.path,
                    line=unknown.line,
                    name=unknown.name,
                ),
                join_messages(why, message("Delete the line.")),
            )
    yield from _advise_on_wsl_memory(machine, wsl_settings)


def _advise_on_missing_wsl_gpu(machine: Machine, wsl_settings: Sequence[WslSettings]) -> MachineAdvice:
    for file in wsl_settings:
        if file.values.get("wsl2.gpusupport", "").lower() in {"false", "0"}:
            return MachineAdvice(
                message("{path} hides the GPU from WSL: gpuSupport is off.", path=file.path),
                join_messages(message("Delete the line."), RESTART_HINT),
            )
    if not machine.host.wsl_gpu:
        return MachineAdvice(
            message("WSL provides no GPU here: /dev/dxg is missing."),
            join_messages(message("Install the GPU's driver in Windows, then run `wsl --update` there."), RESTART_HINT),
        )
    return MachineAdvice(
        message("WSL offers a GPU, but none was found: {reason}", reason=machine.no_gpu_reason),
        message("Install or update the NVIDIA driver in Windows, not inside WSL. WSL uses the driver of Windows."),
    )


def _advise_on_wsl_memory(machine: Machine, wsl_settings: Sequence[WslSettings]) -> Iterator[MachineAdvice]:
    """Yield advice to raise WSL's memory, if that and the GPU's are too little for a large model."""
    largest = max((gpu.memory_bytes or 0 for gpu in machine.gpus), default=0)
    memory = machine.host.memory_bytes
    if not 0 < largest < _WHOLE_MODEL_GIB * _GIB or memory >= _EXPERTS_ON_HOST_GIB * _GIB:
        return
    path = next((str(file.path) for file in wsl_settings), WSLCONFIG_PATH)
    memory_settings = [file.values.get("wsl2.memory", "0") for file in wsl_settings]
    set_to = next((value for value in memory_settings if value != "0"), None)  # 0 means the default
    if set_to is not None:
        hint = join_messages(
            message(
                "In {where}, raise memory={set_to} under [wsl2] as far as Windows can spare.",
                where=path,
                set_to=set_to,
            ),
            RESTART_HINT,
        )
    elif (wanted := suggest_wsl_memory(memory)) > memory / _GIB + 0.5:
        hint = join_messages(
            message("In {where}, set memory={wanted}GB under [wsl2].", where=path, wanted=wanted), RESTART_HINT
        )
    else:
        hint = message(
            "Windows needs the rest of the memory. Choose a model that fits completely into the GPU's memory."
        )
    yield MachineAdvice(
        message(
            "WSL has {memory:.1f} GiB of memory, too little for the layers of a large model that do not fit "
            "into {largest:.0f} GiB of GPU memory.",
            memory=memory / _GIB,
            largest=largest / _GIB,
        ),
        hint,
    )


def _advise_on_disks(host: Host, disks: Sequence[Disk]) -> Iterator[MachineAdvice]:
    for disk in disks:
        if host.wsl is not None and disk.holds_windows_files:
            yield MachineAdvice(
                message(
                    "{folder} is on a Windows drive, which WSL reads slowly and cannot memory-map.",
                    folder=disk.folder,
                ),
                message("Keep models in a Linux folder such as ~/models. Loading is many times faster there."),
            )


def _advise_on_power(host: Host) -> Iterator[MachineAdvice]:
    if host.on_battery:
        yield MachineAdvice(
            message("This computer runs on battery, which slows CPU and GPU down."),
            message("Plug it in, especially before measuring."),
        )
