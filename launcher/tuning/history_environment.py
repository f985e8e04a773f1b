"""Where something was measured: hardware, driver, system, engine, model; nothing that tells whose computer it is."""

from __future__ import annotations

import hashlib
import re
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


_LETTERS = re.compile(r"[^a-z0-9]")


@dataclass(frozen=True, slots=True)
class GpuFacts:
    """A GPU without what is only this one's (UUID, serial number, slot). What is unknown is None."""

    name: str
    vendor: str = "other"
    memory_bytes: int | None = None
    driver: str | None = None


@dataclass(frozen=True, slots=True)
class ModelFacts:
    """A model by its own name and quantisation. `sha256` are its files' in order, () where they are not known.

    `file` is the name of its first file, without its folder.
    """

    name: str
    quant: str | None = None
    bytes: int | None = None
    sha256: tuple[str, ...] = ()
    file: str | None = None

    @property
    def label(self) -> str:
        """Its name, with that of its file where this is quite another one: many files may bear the same name inside."""
        plain = _LETTERS.sub("", self.name.lower())
        same = self.file is None or plain in _LETTERS.sub("", self.file.lower())
        return self.name if same else f"{self.name} ({self.file})"

    @property
    def words(self) -> str:
        """What it is called in a line."""
        return f"{self.label} {self.quant}" if self.quant and self.quant not in self.label else self.label


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
        """Return what a measurement depends on and is another one there, in sentences: also driver and engine."""
        found = list(self.unlike(other))
        before, now = ([gpu.driver for gpu in each.gpus] for each in (self, other))
        if before != now and len(before) == len(now):
            found.append(f"The driver was {_listed(before)} and is {_listed(now)}.")
        if (self.engine, self.engine_version) != (other.engine, other.engine_version):
            was, is_ = (f"{each.engine} {each.engine_version}" for each in (self, other))
            found.append(f"The engine was {was} and is {is_}.")
        if self.model.sha256 and not other.model.sha256 and not _changed_file(self.model, other.model):
            found.append("The model's file was touched, so its checksum is not known any more.")
        return tuple(found)

    def unlike(self, other: Environment) -> tuple[str, ...]:
        """Return the differences that make it another machine or another model: GPU, processor, file."""
        found = []
        mine, theirs = ([gpu.name for gpu in each.gpus] for each in (self, other))
        if mine != theirs:
            found.append(f"The GPU was {_listed(mine)} and is {_listed(theirs)}.")
        if self.cpu != other.cpu:
            found.append(f"The processor was {self.cpu or 'unknown'} and is {other.cpu or 'unknown'}.")
        if changed := _changed_file(self.model, other.model):
            found.append(changed)
        return tuple(found)


def clauses(differences: Sequence[str]) -> str:
    """Return sentences of Environment.differences as parts of another one."""
    return "; ".join(f"{each[0].lower()}{each[1:].removesuffix('.')}" for each in differences)


def model_facts(header: GgufModel, *, compute: bool = False) -> ModelFacts:
    """Return what a header and the library's index tell of a model that lies on this machine.

    With `compute` SHA-256 sums that are not known are computed and kept. Raises OSError then.
    """
    from launcher.models.library import quant_of
    from launcher.models.library_index import hash_kept, read_index

    index, _ = read_index()
    kept = [hash_kept(index, Path(part.path)) for part in header.parts]
    hashes = [each.sha256 if each else "" for each in kept]
    if compute:
        hashes = [known or _hashed(Path(part.path)) for known, part in zip(hashes, header.parts, strict=True)]
    known = tuple(hashes) if all(hashes) else ()
    return ModelFacts(header.name, quant_of(header.path.name), header.file_bytes, known, header.path.name)


def _hashed(path: Path) -> str:
    from launcher.models.library_index import keep_hash

    stat = path.stat()
    with path.open("rb") as file:
        found = hashlib.file_digest(file, "sha256").hexdigest()
    keep_hash(path, found, stat)
    return found


def _facts(gpu: Gpu) -> GpuFacts:
    return GpuFacts(gpu.name, gpu.vendor, gpu.memory_bytes, gpu.driver)


def _changed_file(before: ModelFacts, now: ModelFacts) -> str:
    if (before.name, before.quant) != (now.name, now.quant):
        return f"The model was {before.words} and is {now.words}."
    if before.bytes != now.bytes or (before.sha256 and now.sha256 and before.sha256 != now.sha256):
        return "The model's file is another one."
    return ""


def _listed(names: Sequence[str | None]) -> str:
    return ", ".join(name or "unknown" for name in names) or "none"
