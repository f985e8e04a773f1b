"""Environment of a measurement: hardware, driver, system, engine and model, without identifying the computer."""

from __future__ import annotations

import hashlib
import re
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

from launcher import __version__
from launcher.base.messages import Message, message

if TYPE_CHECKING:
    from launcher.engine.server.launch import Launch
    from launcher.machine.gpu import Gpu
    from launcher.machine.machine import Machine
    from launcher.models.gguf import GgufModel


_NOT_ALPHANUMERIC = re.compile(r"[^a-z0-9]")


@dataclass(frozen=True, slots=True)
class GpuFacts:
    """A GPU without identifiers (UUID, serial number, slot). Unknown values are None."""

    name: str
    vendor: str = "other"
    memory_bytes: int | None = None
    driver: str | None = None


@dataclass(frozen=True, slots=True)
class ModelFacts:
    """A model by its name and quantisation.

    `sha256` has the checksums of its files in order, () if unknown. `file` is the name of its first file.
    """

    name: str
    quant: str | None = None
    bytes: int | None = None
    sha256: tuple[str, ...] = ()
    file: str | None = None

    @property
    def label(self) -> str:
        """The model's name, followed by its file name if that differs, since many files contain the same name."""
        plain = _NOT_ALPHANUMERIC.sub("", self.name.lower())
        same = self.file is None or plain in _NOT_ALPHANUMERIC.sub("", self.file.lower())
        return self.name if same else f"{self.name} ({self.file})"

    @property
    def label_with_quant(self) -> str:
        """The model's name with its quantisation, for one line."""
        return f"{self.label} {self.quant}" if self.quant and self.quant not in self.label else self.label


@dataclass(frozen=True, slots=True)
class Environment:
    """Hardware, driver, system, engine and model of a measurement. Unknown values are None.

    `engine` is the name of the engine build, without its folder, `program` the version of MTP Launcher.
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
    def for_launch(cls, launch: Launch, machine: Machine | None = None) -> Environment:
        """Return the environment of a server that this program starts. Sleeping GPUs are not woken.

        Reads files, so call it off the event loop. The model's SHA-256 is included if the library's index has it.
        """
        return cls.for_model(model_facts(launch.header), launch.build.name, launch.build.version, machine)

    @classmethod
    def for_model(
        cls, model: ModelFacts, engine: str, engine_version: str, machine: Machine | None = None
    ) -> Environment:
        """Return the environment for a model and an engine on this machine, whichever program runs the engine."""
        from launcher.machine.machine import read_machine

        machine = machine or read_machine()
        return cls(
            model=model,
            engine=engine,
            engine_version=engine_version,
            gpus=tuple(map(_gpu_facts, machine.gpus)),
            cpu=machine.host.cpu,
            cores=machine.host.physical_cores,
            memory_bytes=machine.host.memory_bytes,
            system=machine.host.system,
        )

    def differences(self, other: Environment) -> tuple[str, ...]:
        """Return all differences that affect a measurement, as sentences: of machine, model, driver and engine."""
        found = list(self.identity_differences(other))
        before, now = ([gpu.driver for gpu in each.gpus] for each in (self, other))
        if before != now and len(before) == len(now):
            found.append(
                message("The driver was {before} and is {now}.", before=_join_names(before), now=_join_names(now))
            )
        if (self.engine, self.engine_version) != (other.engine, other.engine_version):
            was, is_ = (f"{each.engine} {each.engine_version}" for each in (self, other))
            found.append(message("The engine was {before} and is {now}.", before=was, now=is_))
        if self.model.sha256 and not other.model.sha256 and not _changed_file(self.model, other.model):
            found.append(message("The model file was modified, so its checksum is unknown."))
        return tuple(found)

    def identity_differences(self, other: Environment) -> tuple[str, ...]:
        """Return the differences of machine and model, as sentences: GPU, processor, file."""
        found = []
        mine, theirs = ([gpu.name for gpu in each.gpus] for each in (self, other))
        if mine != theirs:
            found.append(
                message("The GPU was {before} and is {now}.", before=_join_names(mine), now=_join_names(theirs))
            )
        if self.cpu != other.cpu:
            found.append(
                message(
                    "The processor was {before} and is {now}.", before=self.cpu or "unknown", now=other.cpu or "unknown"
                )
            )
        if changed := _changed_file(self.model, other.model):
            found.append(changed)
        return tuple(found)


def join_clauses(differences: Sequence[str]) -> str:
    """Return sentences of Environment.differences as clauses, for use inside another sentence."""
    return "; ".join(f"{each[0].lower()}{each[1:].removesuffix('.')}" for each in differences)


def model_facts(header: GgufModel, *, compute: bool = False) -> ModelFacts:
    """Return the facts of a model on this machine, from its header and the library's index.

    With `compute`, unknown SHA-256 sums are computed and stored in that index; this may raise OSError.
    """
    from launcher.models.library import parse_quant
    from launcher.models.library_index import find_hash, read_index

    index, _ = read_index()
    hashes = []
    for part in header.parts:
        path = Path(part.path)
        stored = find_hash(index, path)
        if stored is not None and stored.sha256:
            hashes.append(stored.sha256)
        elif compute:
            hashes.append(_compute_hash(path))
    sha256 = tuple(hashes) if len(hashes) == len(header.parts) else ()
    return ModelFacts(header.name, parse_quant(header.path.name), header.file_bytes, sha256, header.path.name)


def _compute_hash(path: Path) -> str:
    """Compute the SHA-256 of a file and store it in the library's index."""
    from launcher.models.library_index import store_hash

    stat = path.stat()
    with path.open("rb") as file:
        found = hashlib.file_digest(file, "sha256").hexdigest()
    store_hash(path, found, stat)
    return found


def _gpu_facts(gpu: Gpu) -> GpuFacts:
    return GpuFacts(gpu.name, gpu.vendor, gpu.memory_bytes, gpu.driver)


def _changed_file(before: ModelFacts, now: ModelFacts) -> Message:
    if (before.name, before.quant) != (now.name, now.quant):
        return message("The model was {before} and is {now}.", before=before.label_with_quant, now=now.label_with_quant)
    if before.bytes != now.bytes or (before.sha256 and now.sha256 and before.sha256 != now.sha256):
        return message("The model file has changed.")
    return Message()


def _join_names(names: Sequence[str | None]) -> str:
    return ", ".join(name or "unknown" for name in names) or "none"
