"""Machine presets: the settings that a tune has found for a model on this machine, with the evidence for them.

One is kept for each model and quantisation. An imported one was measured elsewhere: it is not believed until runs of
this machine confirm it (`confirmed_by`).
"""

import json
from collections.abc import Mapping, Sequence
from contextlib import suppress
from dataclasses import replace
from datetime import UTC, datetime
from pathlib import Path
from typing import Any, ClassVar, Literal, Self

from filelock import FileLock, Timeout
from pydantic import BaseModel, ConfigDict, Field, ValidationError

from launcher.base.errors import NothingMeasured, ResultMissing, ResultUnreadable
from launcher.base.files import private_folder, read_or_copy, write_twice
from launcher.base.paths import data_dir
from launcher.models.gguf import read_model
from launcher.tuning.history import History
from launcher.tuning.history_environment import Environment, ModelFacts, model_facts
from launcher.tuning.history_records import Session
from launcher.tuning.records import Settings, Value
from launcher.tuning.report import started, words
from launcher.tuning.report_compare import FEWEST_STARTS, Start, speedup_of_starts
from launcher.tuning.share import bytes_of, without_own, without_person
from launcher.tuning.space import DRAFT, Key, draft_of, key
from launcher.tuning.verdict import MARGIN
from launcher.tuning.workloads import workloads

_LOCK_S = 5.0
_APART = 1_000_000
"""Starts of different measurements are no neighbours."""
_MOST, _MOST_BYTES = 500, 2**20


class _Frozen(BaseModel):
    model_config: ClassVar[ConfigDict] = ConfigDict(frozen=True)


class Evidence(_Frozen):
    """What a preset rests on: the verdict, and where it was measured.

    MTP is `speedup` times as good as no MTP, between `ci_low` and `ci_high` at 95 %; None where that was not compared.
    """

    sentence: str = ""
    because: str = ""
    mtp: Literal["on", "off", "undecided"]
    speedup: float | None = None
    ci_low: float | None = None
    ci_high: float | None = None
    workload: str = ""
    goal: str = "speed"
    measurement: str = ""
    measured_s: float = 0.0
    environment: Environment


class MachinePreset(_Frozen):
    """Settings for a model, with their evidence. `verified_by` are measurements of this machine that speak for it.

    `path` is the file that was measured, on this machine only.
    """

    format: Literal["mtp-launcher preset"] = "mtp-launcher preset"
    version: Literal[1] = 1
    settings: dict[str, Value]
    evidence: Evidence
    verified_by: tuple[str, ...] = ()
    path: Path | None = None

    @property
    def model(self) -> ModelFacts:
        """The model that it is for."""
        return self.evidence.environment.model

    @property
    def verified(self) -> bool:
        """Whether it was measured, or confirmed, on this machine."""
        return bool(self.verified_by)

    @property
    def words(self) -> str:
        """Its settings and what they gave, in a line."""
        found, date = self.evidence, ""
        if found.measured_s:
            date = f", {datetime.fromtimestamp(found.measured_s, UTC):%Y-%m-%d}"
        why = found.sentence or (f"MTP {found.speedup:.2f} times as fast as none" if found.speedup else "measured")
        return f"{words(self.settings) or 'as served'} ({why.rstrip('.')}{date})"

    @classmethod
    def of(cls, session: Session, *, path: Path | None = None) -> Self:
        """Return the preset of a tune that ended in a verdict. Raises NothingMeasured for any other measurement."""
        result = session.result
        settings = result.get("settings")
        if not isinstance(settings, Mapping) or result.get("mtp") not in ("on", "off", "undecided"):
            raise NothingMeasured(
                f"The measurement {session.id} did not end in a verdict.", "`mtp-launcher tune` comes to one."
            )
        figures = {name: result.get(name) for name in ("speedup", "ci_low", "ci_high")}
        evidence = Evidence(
            sentence=str(result.get("sentence") or ""),
            because=str(result.get("because") or ""),
            mtp=result["mtp"],
            workload=session.workload,
            goal=str(result.get("goal") or "speed"),
            measurement=session.id,
            measured_s=session.ended_s or session.began_s,
            environment=session.environment,
            **figures,
        )
        return cls(settings=dict(settings), evidence=evidence, verified_by=(session.id,), path=path)

    def exported(self) -> str:
        """Return it as the text of a file for another machine, without personal data."""
        data = self.model_dump(mode="json", exclude={"path", "verified_by"})
        evidence = data["evidence"]
        evidence["environment"]["model"]["file"] = None
        if evidence["workload"] not in {each.name for each in workloads()}:
            said = {name: evidence[name] for name in ("sentence", "because", "workload")}
            evidence |= without_own(said, evidence["workload"])
        return json.dumps(without_person(data), ensure_ascii=False, indent=1) + "\n"


class _File(BaseModel):
    version: Literal[1] = 1
    presets: list[MachinePreset] = Field(default=[])


def presets_file() -> Path:
    """Return where presets are kept."""
    return data_dir() / "history" / "presets.json"


def presets() -> tuple[MachinePreset, ...]:
    """Return the presets that are kept here; none where the file cannot be read, which is set aside."""
    with suppress(OSError):
        return tuple(_load().presets)
    return ()


def preset_of(model: ModelFacts) -> MachinePreset | None:
    """Return the preset for a model and quantisation, None where there is none."""
    return next((each for each in presets() if _key(each) == (model.name, model.quant)), None)


def keep_preset(preset: MachinePreset) -> None:
    """Keep a preset, in place of one for the same model and quantisation. Raises OSError."""
    _change([preset], [_key(preset)])


def keep_tuned(measurement: str, path: Path) -> MachinePreset:
    """Keep what a tune of the history has found as the preset for its model, which lies at `path`, and return it.

    The model's SHA-256 is computed where it is not known, which takes the time of reading its files. Raises
    HistoryUnusable, ResultMissing, NothingMeasured, ModelMissing and OSError.
    """
    with History() as history:
        session = history.load(measurement)
    environment = session.environment
    if not environment.model.sha256:
        model = model_facts(read_model(path), compute=True)
        session = replace(session, environment=replace(environment, model=model))
    preset = MachinePreset.of(session, path=path)
    keep_preset(preset)
    return preset


def forget_preset(preset: MachinePreset) -> None:
    """Forget the preset for a model and quantisation. Raises OSError."""
    _change([], [_key(preset)])


def preset_named(text: str) -> MachinePreset:
    """Return the preset whose model's name or quant holds `text`. Raises ResultMissing where there is not one."""
    found = [each for each in presets() if text.lower() in f"{each.model.name} {each.model.quant or ''}".lower()]
    if len(found) != 1:
        what = f"{len(found)} presets are for models like {text}." if found else f"There is no preset for {text}."
        raise ResultMissing(what, "`mtp-launcher preset` lists them.", wanted=text)
    return found[0]


def read_preset(path: Path) -> MachinePreset:
    """Read a file that `exported` wrote. It is not verified. Raises ResultMissing and ResultUnreadable."""
    try:
        read = MachinePreset.model_validate_json(bytes_of(path, _MOST_BYTES))
    except ValidationError as error:
        hint = "`mtp-launcher preset export MODEL --to FILE.json` writes one."
        raise ResultUnreadable(f"{path} is not a preset of this program.", hint, path=str(path)) from error
    return read.model_copy(update={"verified_by": (), "path": None})


def confirmed_by(preset: MachinePreset, history: History, here: Environment) -> tuple[str, ...]:
    """Return the measurements of this machine that confirm a preset, () while there are none.

    They were made with the same hardware, driver, engine and model as `here`, of one workload, and have both the
    preset's settings and what it is better than: for MTP on, no MTP, which must be slower at 95 % confidence; for MTP
    off, some draft length, which must not be faster by more than would matter. Both take FEWEST_STARTS starts.
    """
    by_workload: dict[str, list[Session]] = {}
    for summary in history.find(model=preset.model.name):
        if summary.counted:
            session = history.load(summary.id)
            if not session.environment.differences(here):
                by_workload.setdefault(session.workload, []).append(session)
    for sessions in by_workload.values():
        if _confirm(preset, sessions):
            return tuple(session.id for session in sessions)
    return ()


def _confirm(preset: MachinePreset, sessions: Sequence[Session]) -> bool:
    together = len(sessions) == 1
    by_settings: dict[Key, list[Start]] = {}
    for number, session in enumerate(sessions):
        for starts in started(run for run in session.runs if run.counts):
            apart = [replace(start, number=start.number + number * _APART) for start in starts]
            by_settings.setdefault(key(starts[0].runs[0].settings), []).extend(apart)
    mine = [start for its, starts in by_settings.items() if _agrees(dict(its), preset.settings) for start in starts]
    if not mine:
        return False
    if draft_of(preset.settings):
        others = [start for its, starts in by_settings.items() if not draft_of(dict(its)) for start in starts]
        return bool(others) and speedup_of_starts(others, mine, together=together, by_start=True).ratio.low > 1
    drafted = [starts for its, starts in by_settings.items() if draft_of(dict(its))]
    ratios = [speedup_of_starts(mine, starts, together=together).ratio for starts in drafted]
    enough = len(mine) >= FEWEST_STARTS and any(len(starts) >= FEWEST_STARTS for starts in drafted)
    return enough and all(ratio.high < 1 + MARGIN for ratio in ratios)


def _agrees(settings: Settings, wanted: Settings) -> bool:
    """Whether settings are those of a preset, as far as both name them; the draft length always counts."""
    if draft_of(settings) != draft_of(wanted):
        return False
    return all(settings[name] == value for name, value in wanted.items() if name in settings and name != DRAFT)


def _key(preset: MachinePreset) -> tuple[str, str | None]:
    return preset.model.name, preset.model.quant


def _change(added: Sequence[MachinePreset], without: Sequence[tuple[str, str | None]]) -> None:
    path = presets_file()
    private_folder(path.parent)
    try:
        with FileLock(path.with_suffix(".lock"), timeout=_LOCK_S):
            kept = [each for each in _load().presets if _key(each) not in without]
            file = _File(presets=[*kept[-_MOST:], *added])
            write_twice(path, file.model_dump_json(indent=1).encode())
    except Timeout as error:
        raise OSError(f"{path} is held by another program") from error


def _load() -> _File:
    def parsed(data: bytes) -> _File:
        return _File.model_validate_json(data)

    try:
        return read_or_copy(presets_file(), parsed, "The list of machine presets") or _File()
    except FileNotFoundError:
        return _File()


def as_data(preset: MachinePreset) -> dict[str, Any]:
    """Return a preset for JSON."""
    return {**preset.model_dump(mode="json"), "verified": preset.verified}
