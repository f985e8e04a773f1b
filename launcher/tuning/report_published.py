"""Measurements published by others: printed figures, and the statistics that the source derives from them."""

import tomllib
from collections.abc import Mapping
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import ClassVar

from launcher.base.errors import ResultMissing
from launcher.base.messages import message
from launcher.base.paths import shipped_file
from launcher.base.validation import BaseModel, ConfigDict, Field
from launcher.models.server_settings import Value
from launcher.monitor.meter import Acceptance
from launcher.tuning.history_environment import Environment, GpuFacts, ModelFacts
from launcher.tuning.history_records import Session
from launcher.tuning.records import Run

PREFIX = "published:"
"""Prefix of the ids of published sessions, which were not measured on this computer."""
KIND = "published"


class _Frozen(BaseModel):
    model_config: ClassVar[ConfigDict] = ConfigDict(frozen=True, extra="forbid")


class _Cell(_Frozen):
    """One printed figure. `drafted` and `accepted` are set where the source counts them."""

    rate: float = Field(gt=0)
    drafted: int | None = None
    accepted: int | None = None
    prompt: str = ""
    settings: Mapping[str, Value] = {}


class StatedStatistic(_Frozen):
    """A statistic that the source gives for a table. `value` has the digits that are printed there.

    `what` is mean, stdev, span or acceptance of the settings `of`, or the speedup of the settings `of` over the
    settings `over`, for `prompt` only if there is one.
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
    stated: tuple[StatedStatistic, ...] = ()


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
class PublishedTable:
    """One published table: as a session, with its source, its description, and the statistics stated in the source."""

    session: Session
    about: str
    source: str
    stated: tuple[StatedStatistic, ...]


@cache
def published_tables() -> tuple[PublishedTable, ...]:
    """Return the tables that ship with the program."""
    files = sorted(shipped_file("resources", "published").glob("*.toml"))
    return tuple(table for path in files for table in _read_tables(path))


def published_table(id: str) -> PublishedTable:  # noqa: A002
    """Return the table with an id, given with or without PREFIX. Raises ResultMissing."""
    wanted = id.removeprefix(PREFIX)
    for each in published_tables():
        if each.session.id == PREFIX + wanted:
            return each
    names = ", ".join(each.session.id for each in published_tables())
    raise ResultMissing(
        message("There is no published table {wanted}.", wanted=wanted),
        message("There are {names}.", names=names),
        id=id,
    )


def _read_tables(path: Path) -> list[PublishedTable]:
    file = _File.model_validate(tomllib.loads(path.read_text("utf-8")))
    gpu = GpuFacts(file.gpu.name, file.gpu.vendor, round(file.gpu.memory_gib * 2**30))
    memory = None if file.memory_gib is None else round(file.memory_gib * 2**30)
    published = []
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
        runs = tuple(_run_from_cell(cell, table) for cell in table.cells)
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
        published.append(PublishedTable(session, table.about, file.source, table.stated))
    return published


def _run_from_cell(cell: _Cell, table: _Table) -> Run:
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
