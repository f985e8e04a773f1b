"""Measurements that others have published, as data: what they printed, and the figures that they say follow from it."""

import tomllib
from collections.abc import Mapping
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import ClassVar

from pydantic import BaseModel, ConfigDict, Field

from launcher.base.errors import ResultMissing
from launcher.base.paths import shipped
from launcher.monitor.meter import Acceptance
from launcher.tuning.history_environment import Environment, GpuFacts, ModelFacts
from launcher.tuning.history_records import Session
from launcher.tuning.records import Run, Value

PREFIX = "published:"
"""Begins the id of a measurement that is none of this computer's."""
KIND = "published"


class _Frozen(BaseModel):
    model_config: ClassVar[ConfigDict] = ConfigDict(frozen=True, extra="forbid")


class _Cell(_Frozen):
    """One printed figure. `drafted` and `accepted` are where the source counts them."""

    rate: float = Field(gt=0)
    drafted: int | None = None
    accepted: int | None = None
    prompt: str = ""
    settings: Mapping[str, Value] = {}


class Stated(_Frozen):
    """A figure that the source gives for a table, with as many digits as it has there.

    `what` is mean, stdev, span, acceptance (of settings `of`) or speedup (of `of` over `over`, of `prompt` alone where
    that is named).
    """

    what: str
    value: str
    of: Mapping[str, Value]
    over: Mapping[str, Value] = {}
    prompt: str = ""


class _Table(_Frozen):
    name: str
    about: str
    workload: str = ""
    tokens: int = 0
    model: str
    quant: str | None = None
    settings: Mapping[str, Value] = {}
    cells: tuple[_Cell, ...]
    stated: tuple[Stated, ...] = ()


class _Gpu(_Frozen):
    name: str
    vendor: str
    memory_gib: float


class _File(_Frozen):
    source: str
    gpu: _Gpu
    cpu: str | None = None
    cores: int | None = None
    memory_gib: float | None = None
    system: str = ""
    engine: str
    engine_version: str
    tables: tuple[_Table, ...]


@dataclass(frozen=True, slots=True)
class Published:
    """One published table: the measurement as if it were one of ours, its source, and what the source says of it."""

    session: Session
    about: str
    source: str
    stated: tuple[Stated, ...]


@cache
def published() -> tuple[Published, ...]:
    """Return the tables that ship with the program."""
    found: list[Published] = []
    for path in sorted(shipped("resources", "published").glob("*.toml")):
        found += _read(path)
    return tuple(found)


def published_table(id: str) -> Published:  # noqa: A002
    """Return the table of that id, with or without its prefix. Raises ResultMissing."""
    wanted = id.removeprefix(PREFIX)
    for each in published():
        if each.session.id == PREFIX + wanted:
            return each
    names = ", ".join(each.session.id for each in published())
    raise ResultMissing(f"There is no published table {wanted}.", f"There are {names}.", id=id)


def _read(path: Path) -> list[Published]:
    file = _File.model_validate(tomllib.loads(path.read_text("utf-8")))
    gpu = GpuFacts(file.gpu.name, file.gpu.vendor, round(file.gpu.memory_gib * 2**30))
    memory = None if file.memory_gib is None else round(file.memory_gib * 2**30)
    made = []
    for table in file.tables:
        environment = Environment(
            ModelFacts(table.model, table.quant),
            file.engine,
            file.engine_version,
            (gpu,),
            file.cpu,
            file.cores,
            memory,
            file.system,
            program="",
        )
        runs = tuple(_run(cell, table) for cell in table.cells)
        result = {"sentence": table.about, "source": file.source}
        session = Session(
            f"{PREFIX}{path.stem}/{table.name}",
            KIND,
            table.workload,
            0.0,
            None,
            environment,
            table.settings,
            result,
            runs,
        )
        made.append(Published(session, table.about, file.source, table.stated))
    return made


def _run(cell: _Cell, table: _Table) -> Run:
    drafts = None
    if cell.drafted is not None and cell.accepted is not None:
        drafts = Acceptance(cell.drafted, cell.accepted, (), ())
    return Run(
        prompt=cell.prompt or table.workload or table.name,
        settings={**table.settings, **cell.settings},
        began_s=0.0,
        wall_s=0.0,
        reply_tokens=table.tokens,
        decode_rate=cell.rate,
        acceptance=drafts,
    )
