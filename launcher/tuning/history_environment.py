"""Where something was measured: hardware, driver, system, engine, model; nothing that tells whose computer it is."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from launcher import __version__

if TYPE_CHECKING:
    from launcher.engine.launch import Launch
    from launcher.machine.gpu import Gpu
    from launcher.machine.machine import Machine
    from launcher.models.gguf_header import GgufModel


@dataclass(frozen=True, slots=True)
class GpuFacts:
    """A GPU without what is only this one's (UUID, serial number, slot). What is unknown is None."""

    name: str
    vendor: str = "other"
    memory_bytes: int | None = None
    driver: str | None = None


@dataclass(frozen=True, slots=True)
class ModelFacts:
    """A model by its own name and quantisation. `sha256` are its files' in order, () where they are not known."""

    name: str
    quant: str | None = None
    bytes: int | None = None
    sha256: tuple[str, ...] = ()

    @property
    def words(self) -> str:
        """What it is called in a line."""
        return f"{self.name} {self.quant}" if self.quant and self.quant not in self.name else self.name


@dataclass(frozen=True, slots=True)
class Environment:
    """Hardware, driver, system, engine and model of a measurement. What is unknown is None.

    `engine` names the program or store entry without its folder, `program` is this program's version.
    """

    model: ModelFacts
    engine: str
    engine_version: str
    gpus: tuple[GpuFacts, ...] = ()
    cpu: str | None = None
    cores: int | None = None
    memory_bytes: int | None = None
    system: str = ""
    program: str = __version__

    @classmethod
    def of_this_machine(cls, launch: Launch, machine: Machine | None = None) -> Environment:
        """Return it for a server of ours. A GPU that sleeps stays asleep. It reads files: call it off the loop.

        The model's SHA-256 is what was computed before and still holds (`keep_hash` of the library), else unknown.
        """
        return cls.here(model_facts(launch.header), launch.build.name, launch.build.version, machine)

    @classmethod
    def here(cls, model: ModelFacts, engine: str, engine_version: str, machine: Machine | None = None) -> Environment:
        """Return it for a model and an engine on this machine, of which other programs may have told."""
        from launcher.machine.machine import read_machine

        machine = machine or read_machine()
        return cls(
            model=model,
            engine=engine,
            engine_version=engine_version,
            gpus=tuple(map(_facts, machine.gpus)),
            cpu=machine.host.cpu,
            cores=machine.host.physical_cores,
            memory_bytes=machine.host.memory_bytes,
            system=machine.host.system,
        )

    def as_json(self) -> dict[str, Any]:
        """Return it for a file."""
        return asdict(self)

    def differences(self, other: Environment) -> tuple[str, ...]:
        """Return what a measurement depends on and is another one there, in words: GPU, driver, engine, model."""
        found = []
        mine, theirs = ([gpu.name for gpu in each.gpus] for each in (self, other))
        if mine != theirs:
            found.append(f"the GPU was {_listed(mine)} and is {_listed(theirs)}")
        elif (before := [gpu.driver for gpu in self.gpus]) != (now := [gpu.driver for gpu in other.gpus]):
            found.append(f"the driver was {_listed(before)} and is {_listed(now)}")
        if not self.gpus and not other.gpus and self.cpu != other.cpu:
            found.append(f"the processor was {self.cpu or 'unknown'} and is {other.cpu or 'unknown'}")
        if (self.engine, self.engine_version) != (other.engine, other.engine_version):
            before_, now_ = (f"{each.engine} {each.engine_version}" for each in (self, other))
            found.append(f"the engine was {before_} and is {now_}")
        if changed := _changed_file(self.model, other.model):
            found.append(changed)
        return tuple(found)


def model_facts(header: GgufModel) -> ModelFacts:
    """Return what a header and the library's index tell of a model that lies on this machine."""
    from launcher.models.library import quant_of
    from launcher.models.library_index import hash_kept, read_index

    index, _ = read_index()
    kept = [hash_kept(index, Path(part.path)) for part in header.parts]
    hashes = tuple(each.sha256 for each in kept if each)
    whole = hashes if len(hashes) == len(kept) else ()
    return ModelFacts(header.name, quant_of(header.path.name), header.file_bytes, whole)


def _facts(gpu: Gpu) -> GpuFacts:
    return GpuFacts(gpu.name, gpu.vendor, gpu.memory_bytes, gpu.driver)


def _changed_file(before: ModelFacts, now: ModelFacts) -> str:
    if (before.name, before.quant) != (now.name, now.quant):
        return f"the model was {before.words} and is {now.words}"
    if before.bytes != now.bytes or (before.sha256 and now.sha256 and before.sha256 != now.sha256):
        return "the model's file is another one"
    return ""


def _listed(names: Sequence[str | None]) -> str:
    return ", ".join(name or "unknown" for name in names) or "none"
