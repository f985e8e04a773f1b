"""The files of an official llama.cpp release by their names, and which of them suits a computer.

Names and requirements: llama.cpp's .github/workflows/release.yml at b11434.
"""

import os
import re
import sys
from collections.abc import Collection, Iterator, Sequence
from dataclasses import dataclass
from typing import Self

from launcher.engine.install_errors import EngineUnfit
from launcher.machine.backend import cuda_obstacle
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
"""Of the systems on which the Linux builds are made: Ubuntu 22.04 for x64 without a toolkit, else Ubuntu 24.04."""
_VENDORS: dict[str, Vendor] = {"cuda": "nvidia", "rocm": "amd", "sycl": "intel", "openvino": "intel"}
"""Whose GPUs a backend is for; the others take any."""
_SYSTEM_WORDS = {"linux": "Linux", "windows": "Windows", "darwin": "macOS", "other": "this system"}


@dataclass(frozen=True, slots=True)
class BuildName:
    """What the name of a build's archive says of it. `toolkit` is the version of CUDA, ROCm or OpenVINO."""

    name: str
    tag: str
    system: System
    backend: str
    toolkit: tuple[int, ...] | None
    arch: str

    @classmethod
    def parse(cls, name: str) -> Self | None:
        """Read an archive's name; None for what is no build for a desktop computer."""
        found = _NAME.fullmatch(name)
        if found is None:
            return None
        system, arch = _SYSTEMS[found["system"]], found["arch"]
        bare = "metal" if (system, arch) == ("darwin", "arm64") else "cpu"
        toolkit = tuple(map(int, found["toolkit"].split("."))) if found["toolkit"] else None
        return cls(name, found["tag"], system, found["versioned"] or found["plain"] or bare, toolkit, arch)

    @property
    def label(self) -> str:
        """The backend with its version, such as cuda-13.4 or vulkan."""
        return self.backend + (f"-{'.'.join(map(str, self.toolkit))}" if self.toolkit else "")

    @property
    def folder(self) -> str:
        """A name for an installed build: b11434-cuda-13.4-x64."""
        return f"{self.tag}-{self.label}-{self.arch}"

    @property
    def runtime(self) -> str | None:
        """The archive with the CUDA libraries that this build needs beside it; None for other builds.

        For Windows its name does not have the tag.
        """
        if self.backend != "cuda":
            return None
        if self.system == "windows":
            return f"cudart-llama-bin-win-{self.label}-{self.arch}.zip"
        return f"cudart-llama-{self.tag}-bin-ubuntu-{self.label}-{self.arch}.tar.gz"

    @property
    def needs_glibc(self) -> tuple[int, int] | None:
        """The oldest glibc that it runs with; None where that does not apply."""
        if self.system != "linux":
            return None
        return _OLD_GLIBC if self.arch == "x64" and self.backend in ("cpu", "vulkan") else _NEW_GLIBC

    def is_called(self, backend: str) -> bool:
        """Return whether a user who writes `backend` may mean this build: cuda, cuda-13, cuda-13.4."""
        return self.label == backend or self.label.startswith((f"{backend}-", f"{backend}."))


@dataclass(frozen=True, slots=True)
class Target:
    """A computer as far as it decides which build it takes. `glibc` None: not known, or none is there."""

    system: System
    machine: str
    glibc: tuple[int, int] | None
    gpus: tuple[Gpu, ...] = ()

    @property
    def arch(self) -> str | None:
        """The architecture as releases write it; None when no release is for it."""
        return _ARCHITECTURES.get(self.machine.lower())

    def __str__(self) -> str:
        """Return it as people say it, such as Linux x64."""
        return f"{_SYSTEM_WORDS[self.system]} {self.arch or self.machine}"


@dataclass(frozen=True, slots=True)
class Choice:
    """A build to take, the runtime archive that goes beside it, the GPU that it is for, and why it was taken."""

    build: BuildName
    gpu: Gpu | None
    reasons: tuple[str, ...]


def target_of(machine: Machine) -> Target:
    """Describe a computer."""
    return Target(machine.host.kind, machine.host.machine, _glibc(), machine.gpus)


def choose(target: Target, names: Collection[str], backend: str | None = None) -> tuple[Choice, ...]:
    """Return the builds among a release's files that suit `target`, the best first; the next is what to fall back to.

    An NVIDIA GPU takes the newest CUDA that it and its driver allow, then Vulkan; other GPUs take Vulkan; the last
    resort is the processor. With `backend` nothing else is taken. Raises EngineUnfit with the reasons when none suits.
    """
    builds = [build for build in map(BuildName.parse, names) if build and _is_for(build, target)]
    if not builds:
        raise EngineUnfit(
            f"The release has no build for {target}.", "Build llama.cpp yourself, then `mtp-launcher engine add PATH`."
        )
    gpu = target.gpus[0] if target.gpus else None
    wanted = [build for build in builds if build.is_called(backend)] if backend else list(_by_preference(builds, gpu))
    if not wanted:
        others = ", ".join(sorted(build.label for build in builds))
        what = f"{backend} build" if backend else "build without a GPU's backend"
        raise EngineUnfit(f"The release has no {what} for {target}.", f"It has: {others}.")
    passed: list[str] = []
    found: list[Choice] = []
    for build in sorted(wanted, key=lambda build: build.toolkit or (), reverse=True) if backend else wanted:
        its = gpu_for(build.backend, target.gpus)
        obstacle = _obstacle(build, its, target, names)
        if obstacle:
            passed.append(obstacle)
        else:
            found.append(Choice(build, its, (*passed, _reason(build, its or gpu))))
            passed = []
    if not found:
        raise EngineUnfit(
            f"None of the release's {f'{backend} ' if backend else ''}builds runs here. {' '.join(passed)}",
            "Leave --backend out to take what suits." if backend else "Build llama.cpp yourself: `engine add PATH`.",
        )
    return tuple(found)


def gpu_for(backend: str, gpus: Sequence[Gpu]) -> Gpu | None:
    """Return the first GPU that a backend can use; None when there is none, and for the processor's."""
    if backend == "cpu":
        return None
    vendor = _VENDORS.get(backend.partition("-")[0])
    return next((gpu for gpu in gpus if vendor in (None, gpu.vendor)), None)


def slowness(backend: str) -> int:
    """Return a backend's place among those that a computer may fall back to: a GPU's own, Vulkan, the processor."""
    return {"cpu": 2, "vulkan": 1}.get(backend, 0)


def _is_for(build: BuildName, target: Target) -> bool:
    return build.system == target.system and build.arch == target.arch


def _by_preference(builds: Sequence[BuildName], gpu: Gpu | None) -> Iterator[BuildName]:
    """Yield the builds that are taken without being asked for. ROCm, SYCL and OpenVINO need more than a driver."""
    if gpu is not None and gpu.vendor == "nvidia":
        cuda = [build for build in builds if build.backend == "cuda"]
        yield from sorted(cuda, key=lambda build: build.toolkit or (), reverse=True)
    for backend in ("metal", "vulkan", "cpu") if gpu is not None else ("metal", "cpu"):
        yield from (build for build in builds if build.backend == backend)


def _obstacle(build: BuildName, gpu: Gpu | None, target: Target, names: Collection[str]) -> str | None:
    """Return why a build cannot run on a computer, or None."""
    needed = build.needs_glibc
    if needed and target.glibc and target.glibc < needed:
        return f"The {_words(build)} build needs glibc {_dotted(needed)}, this system has {_dotted(target.glibc)}."
    if build.runtime and build.runtime not in names:
        return f"The {_words(build)} build's runtime {build.runtime} is not in the release."
    if build.backend == "cuda":
        if gpu is None or gpu.vendor != "nvidia":
            return f"The {_words(build)} build needs an NVIDIA GPU, and none was found."
        return cuda_obstacle(gpu, build.toolkit or ())
    return None


def _reason(build: BuildName, gpu: Gpu | None) -> str:
    match build.backend:
        case "cuda" if gpu is not None:
            return f"{_words(build)} runs on the {gpu.name} with driver {gpu.driver}."
        case "vulkan" if gpu is not None:
            return f"Vulkan runs on the {gpu.name} with the driver that it has."
        case "metal":
            return "On a Mac the engine computes by Metal."
        case "rocm":
            return f"The archive does not hold ROCm's own libraries: {_words(build)} must be installed."
        case "cpu" if gpu is None:
            return "No GPU was found, so the engine computes on the processor."
        case "cpu":
            return "The processor is what is left."
        case _:
            return f"The {_words(build)} build was asked for."


def _words(build: BuildName) -> str:
    name = {"cuda": "CUDA", "rocm": "ROCm", "openvino": "OpenVINO", "vulkan": "Vulkan", "cpu": "processor"}
    version = f" {_dotted(build.toolkit)}" if build.toolkit else ""
    return f"{name.get(build.backend, build.backend.upper())}{version}"


def _dotted(version: Sequence[int]) -> str:
    return ".".join(map(str, version))


def _glibc() -> tuple[int, int] | None:
    """Return the version of the C library where that is glibc."""
    if sys.platform != "linux":
        return None
    try:
        name, _, version = (os.confstr("CS_GNU_LIBC_VERSION") or "").partition(" ")
        major, minor = version.split(".")[:2]
        return (int(major), int(minor)) if name == "glibc" else None
    except (ValueError, OSError):  # musl does not know that name
        return None
