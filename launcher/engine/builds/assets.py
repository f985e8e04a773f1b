"""Parses the file names of official llama.cpp releases and chooses the build for a computer.

Source of names and requirements: llama.cpp's .github/workflows/release.yml at b11434.
"""

import os
import re
import sys
from collections.abc import Collection, Iterable, Iterator, Sequence
from dataclasses import dataclass
from typing import Self

from launcher.base.messages import FaceName, command_name, join_messages, message
from launcher.engine.builds.install_errors import EngineUnfit
from launcher.machine.backend import find_cuda_obstacle
from launcher.machine.gpu import Gpu, Vendor
from launcher.machine.host import System
from launcher.machine.machine import Machine

_NAME = re.compile(
    r"llama-(?P<tag>b\d+)-bin-(?P<system>win|ubuntu|macos)-"
    r"(?:(?P<versioned>cuda|rocm|openvino)-(?P<toolkit>\d+(?:\.\d+)*)-|(?P<plain>vulkan|cpu|sycl(?:-fp\d+)?)-)?"
    r"(?P<arch>x64|arm64)\.(?:zip|tar\.gz)",
    re.ASCII,
)
_SYSTEMS: dict[str, System] = {"win": "windows", "ubuntu": "linux", "macos": "darwin"}
_ARCHITECTURES = {"x86_64": "x64", "amd64": "x64", "aarch64": "arm64", "arm64": "arm64"}
_OLD_GLIBC, _NEW_GLIBC = (2, 35), (2, 39)
"""glibc versions that Linux builds need: x64 builds without a toolkit are made on Ubuntu 22.04, others on 24.04."""
_VENDORS: dict[str, Vendor] = {"cuda": "nvidia", "rocm": "amd", "sycl": "intel", "openvino": "intel"}
"""GPU vendor that a backend requires; backends not listed here run on GPUs of any vendor."""
_SYSTEM_WORDS = {"linux": "Linux", "windows": "Windows", "darwin": "macOS", "other": "this system"}


@dataclass(frozen=True, slots=True)
class BuildName:
    """The parts of a build archive's file name. `toolkit` is the version of CUDA, ROCm or OpenVINO, if any."""

    name: str
    tag: str
    system: System
    backend: str
    toolkit: tuple[int, ...] | None
    arch: str

    @classmethod
    def parse(cls, name: str) -> Self | None:
        """Parse an archive's file name; None if it is not a build for a desktop computer."""
        found = _NAME.fullmatch(name)
        if found is None:
            return None
        system, arch = _SYSTEMS[found["system"]], found["arch"]
        default_backend = "metal" if (system, arch) == ("darwin", "arm64") else "cpu"
        backend = found["versioned"] or found["plain"] or default_backend
        toolkit = tuple(map(int, found["toolkit"].split("."))) if found["toolkit"] else None
        return cls(name, found["tag"], system, backend, toolkit, arch)

    @property
    def label(self) -> str:
        """Backend with version, such as cuda-13.4 or vulkan."""
        return f"{self.backend}-{_format_version(self.toolkit)}" if self.toolkit else self.backend

    @property
    def folder(self) -> str:
        """Folder name of the installed build, such as b11434-cuda-13.4-x64."""
        return f"{self.tag}-{self.label}-{self.arch}"

    @property
    def runtime(self) -> str | None:
        """Name of the archive with the CUDA libraries for this build; None for builds of other backends.

        The name for Windows does not contain the tag.
        """
        if self.backend != "cuda":
            return None
        if self.system == "windows":
            return f"cudart-llama-bin-win-{self.label}-{self.arch}.zip"
        return f"cudart-llama-{self.tag}-bin-ubuntu-{self.label}-{self.arch}.tar.gz"

    @property
    def needs_glibc(self) -> tuple[int, int] | None:
        """Minimum glibc version; None on systems other than Linux."""
        if self.system != "linux":
            return None
        return _OLD_GLIBC if self.arch == "x64" and self.backend in ("cpu", "vulkan") else _NEW_GLIBC

    def matches_backend(self, backend: str) -> bool:
        """Return whether `backend`, as a user types it, matches this build: cuda, cuda-13 or cuda-13.4."""
        return self.label == backend or self.label.startswith((f"{backend}-", f"{backend}."))


@dataclass(frozen=True, slots=True)
class TargetComputer:
    """The properties of a computer that decide which build it needs.

    `machine` is the architecture as `platform.machine()` returns it. `glibc` is None if unknown or absent (musl,
    other systems).
    """

    system: System
    machine: str
    glibc: tuple[int, int] | None
    gpus: tuple[Gpu, ...] = ()

    @property
    def arch(self) -> str | None:
        """Architecture as spelled in release file names; None if no release supports it."""
        return _ARCHITECTURES.get(self.machine.lower())

    def __str__(self) -> str:
        """Return the display name, such as Linux x64."""
        return f"{_SYSTEM_WORDS[self.system]} {self.arch or self.machine}"


@dataclass(frozen=True, slots=True)
class BuildChoice:
    """A build chosen for a computer, the GPU that it will use (None for the CPU), and the reasons as sentences."""

    build: BuildName
    gpu: Gpu | None
    reasons: tuple[str, ...]


def describe_computer(machine: Machine) -> TargetComputer:
    """Return the properties of `machine` that decide which build it needs."""
    return TargetComputer(machine.host.kind, machine.host.machine, _read_glibc_version(), machine.gpus)


def choose_builds(
    target: TargetComputer, names: Collection[str], backend: str | None = None
) -> tuple[BuildChoice, ...]:
    """Return the builds in a release that can run on `target`, best first; later ones are fallbacks.

    An NVIDIA GPU gets the newest CUDA build that the GPU and its driver support, then Vulkan; other GPUs get Vulkan;
    the CPU build comes last. With `backend`, only builds of that backend are considered. Raises EngineUnfit with the
    reasons if none can run.
    """
    builds = [build for build in map(BuildName.parse, names) if build and _matches_computer(build, target)]
    if not builds:
        raise EngineUnfit(
            message("The release has no build for {target}.", target=target),
            message("Build llama.cpp yourself[, then {command}].", command=command_name("engine add PATH")),
        )
    gpu = target.gpus[0] if target.gpus else None
    if backend:
        wanted = _newest_toolkit_first(build for build in builds if build.matches_backend(backend))
    else:
        wanted = list(_builds_by_preference(builds, gpu))
    if not wanted:
        others = ", ".join(sorted(build.label for build in builds))
        raise EngineUnfit(
            message("The release has no {backend} build for {target}.", backend=backend, target=target)
            if backend
            else message("No build of the release suits {target}.", target=target),
            message("Available: {others}.", others=others),
        )
    obstacles: list[str] = []
    choices: list[BuildChoice] = []
    for build in wanted:
        usable_gpu = gpu_for(build.backend, target.gpus)
        obstacle = _find_obstacle(build, usable_gpu, target, names)
        if obstacle:
            obstacles.append(obstacle)
        else:
            choices.append(BuildChoice(build, usable_gpu, (*obstacles, _choice_reason(build, usable_gpu or gpu))))
            obstacles = []
    if not choices:
        raise EngineUnfit(
            join_messages(
                message("None of the[ {backend}] builds of this release run on this computer.", backend=backend),
                *obstacles,
            ),
            message("Omit --backend to choose automatically.")
            if backend
            else message("Build llama.cpp yourself[: {command}].", command=FaceName("`engine add PATH`")),
        )
    return tuple(choices)


def gpu_for(backend: str, gpus: Sequence[Gpu]) -> Gpu | None:
    """Return the first GPU that a backend can use; None if there is none, or the backend is the CPU."""
    if backend == "cpu":
        return None
    vendor = _VENDORS.get(backend.partition("-")[0])
    return next((gpu for gpu in gpus if vendor in (None, gpu.vendor)), None)


def fallback_rank(backend: str) -> int:
    """Return a backend's rank in the fallback order: 0 for CUDA, ROCm, Metal and so on, 1 for Vulkan, 2 for CPU."""
    return {"cpu": 2, "vulkan": 1}.get(backend, 0)


def _matches_computer(build: BuildName, target: TargetComputer) -> bool:
    return build.system == target.system and build.arch == target.arch


def _newest_toolkit_first(builds: Iterable[BuildName]) -> list[BuildName]:
    return sorted(builds, key=lambda build: build.toolkit or (), reverse=True)


def _builds_by_preference(builds: Sequence[BuildName], gpu: Gpu | None) -> Iterator[BuildName]:
    """Yield the builds to try, best first, when the user named no backend.

    ROCm, SYCL and OpenVINO are left out: they need installed libraries besides the driver.
    """
    if gpu is not None and gpu.vendor == "nvidia":
        yield from _newest_toolkit_first(build for build in builds if build.backend == "cuda")
    for backend in ("metal", "vulkan", "cpu") if gpu is not None else ("metal", "cpu"):
        yield from (build for build in builds if build.backend == backend)


def _find_obstacle(build: BuildName, gpu: Gpu | None, target: TargetComputer, names: Collection[str]) -> str | None:
    """Return the reason why a build cannot run on a computer as a sentence; None if it can."""
    needed = build.needs_glibc
    if needed and target.glibc and target.glibc < needed:
        return message(
            "The {build} build needs glibc {needed}; this system has {found}.",
            build=_backend_label(build),
            needed=_format_version(needed),
            found=_format_version(target.glibc),
        )
    if build.runtime and build.runtime not in names:
        return message(
            "The release lacks the runtime {runtime} of the {build} build.",
            build=_backend_label(build),
            runtime=build.runtime,
        )
    if build.backend == "cuda":
        if gpu is None or gpu.vendor != "nvidia":
            return message("The {build} build needs an NVIDIA GPU, and none was found.", build=_backend_label(build))
        return find_cuda_obstacle(gpu, build.toolkit or ())
    return None


def _choice_reason(build: BuildName, gpu: Gpu | None) -> str:
    match build.backend:
        case "cuda" if gpu is not None:
            return message(
                "{build} runs on the {name} with driver {driver}.",
                build=_backend_label(build),
                name=gpu.name,
                driver=gpu.driver,
            )
        case "vulkan" if gpu is not None:
            return message("Vulkan runs on the {name} with its current driver.", name=gpu.name)
        case "metal":
            return message("On a Mac the engine uses Metal.")
        case "rocm":
            return message(
                "The archive does not contain the ROCm libraries. Install {build}.",
                build=_backend_label(build),
            )
        case "cpu" if gpu is None:
            return message("No GPU found, so the engine runs on the CPU.")
        case "cpu":
            return message("Only the CPU is left.")
        case _:
            return message("You asked for the {build} build.", build=_backend_label(build))


def _backend_label(build: BuildName) -> str:
    name = {"cuda": "CUDA", "rocm": "ROCm", "openvino": "OpenVINO", "vulkan": "Vulkan", "cpu": "processor"}
    version = f" {_format_version(build.toolkit)}" if build.toolkit else ""
    return f"{name.get(build.backend, build.backend.upper())}{version}"


def _format_version(version: Sequence[int]) -> str:
    return ".".join(map(str, version))


def _read_glibc_version() -> tuple[int, int] | None:
    """Return the glibc version of this system; None if its C library is not glibc."""
    if sys.platform != "linux":
        return None
    try:
        name, _, version = (os.confstr("CS_GNU_LIBC_VERSION") or "").partition(" ")
        major, minor = version.split(".")[:2]
        return (int(major), int(minor)) if name == "glibc" else None
    except (ValueError, OSError):  # musl does not know that name
        return None
