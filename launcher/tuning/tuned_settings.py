"""Tuned settings: what a tune found best for a model on this machine, with the evidence.

There is one record for each model and quantisation. An imported one was measured elsewhere and stays unverified until
measurements on this machine confirm it (`find_confirming_sessions`).

The command, the option and the exported file call them presets.
"""

import json
from collections.abc import Mapping, Sequence
from contextlib import suppress
from dataclasses import replace
from pathlib import Path
from typing import Any, ClassVar, Literal, Self

from launcher.base.errors import NothingMeasured, ResultMissing, ResultUnreadable
from launcher.base.files import make_private_folder
from launcher.base.kept_files import KeptFile, hold_file_lock
from launcher.base.messages import command_name, mark, message
from launcher.base.paths import data_dir
from launcher.base.validation import BaseModel, ConfigDict, Field, ValidationError
from launcher.models.gguf import read_model
from launcher.models.server_settings import Value
from launcher.tuning.history import History
from launcher.tuning.history_environment import Environment, ModelFacts, model_facts
from launcher.tuning.history_records import Session, format_utc_date, measured_line
from launcher.tuning.records import RunSettings
from launcher.tuning.report import FEWEST_STARTS, ServerStart, group_starts, settings_line, speedup_of_starts
from launcher.tuning.session_file import read_bytes, remove_own_names, remove_personal_data
from launcher.tuning.space import DRAFT, Key, draft_length, settings_key
from launcher.tuning.statistics import mean_of_known
from launcher.tuning.verdict import MARGIN
from launcher.tuning.workloads import shipped_workloads

_LOCK_S = 5.0
_SESSION_OFFSET = 1_000_000
"""Offset between the start numbers of different sessions, so that starts of two sessions are never neighbours."""
_MOST_RECORDS, _MOST_BYTES = 500, 2**20


class _Frozen(BaseModel):
    model_config: ClassVar[ConfigDict] = ConfigDict(frozen=True)


class Evidence(_Frozen):
    """Evidence for tuned settings: the verdict of its tune, and the environment in which it was measured.

    `speedup` is the ratio of MTP to no MTP, with `ci_low` and `ci_high` as its 95 % interval; None if not compared.
    `tokens_per_second` is the mean speed with the tuned settings; None if it is not known, as in older records.
    `measured_s` is in seconds since the epoch, `measurement` is the session's id.
    """

    sentence: str = ""
    because: str = ""
    mtp: Literal["on", "off", "undecided"]
    tokens_per_second: float | None = None
    speedup: float | None = None
    ci_low: float | None = None
    ci_high: float | None = None
    workload: str = ""
    goal: str = "speed"
    measurement: str = ""
    measured_s: float = 0.0
    environment: Environment


class TunedSettings(_Frozen):
    """Settings for a model, with their evidence. `verified_by` are the ids of this machine's sessions that confirm it.

    `path` is the measured model file, on this machine only.
    """

    format: Literal["mtp-launcher preset"] = "mtp-launcher preset"
    version: Literal[1] = 1
    settings: dict[str, Value]
    evidence: Evidence
    verified_by: tuple[str, ...] = ()
    path: Path | None = None

    @property
    def model(self) -> ModelFacts:
        """The model that was tuned."""
        return self.evidence.environment.model

    @property
    def verified(self) -> bool:
        """Whether it was measured or confirmed on this machine."""
        return bool(self.verified_by)

    def agrees_with(self, settings: Mapping[str, object]) -> bool:
        """Return whether no other value is among `settings` for a setting that was tuned."""
        return all(settings.get(name, value) == value for name, value in self.settings.items())

    @property
    def summary(self) -> str:
        """Message, a clause: the settings, their speed, what they gained, and when that was measured."""
        evidence = self.evidence
        return message(
            "{settings}[, {rate:,.0f} t/s][ ({times:.1f} times as fast as with MTP off)][, {date}]",
            settings=settings_line(self.settings) or message("as served"),
            rate=evidence.tokens_per_second,
            times=evidence.speedup if draft_length(self.settings) else None,
            date=format_utc_date(evidence.measured_s) if evidence.measured_s else None,
        )

    @property
    def measured_line(self) -> str:
        """Message for wherever a speed is shown."""
        return measured_line(self.summary)

    @classmethod
    def from_session(cls, session: Session, *, path: Path | None = None) -> Self:
        """Return the tuned settings of a tune that ended with a verdict. Raises NothingMeasured for other sessions."""
        result = session.result
        settings = result.get("settings")
        if not isinstance(settings, Mapping) or result.get("mtp") not in ("on", "off", "undecided"):
            raise NothingMeasured(
                message("The measurement {id} has no verdict.", id=session.id),
                message("Run {command} to get one.", command=command_name("tune", mark("Tune"))),
            )
        figures = {name: result.get(name) for name in ("speedup", "ci_low", "ci_high")}
        evidence = Evidence(
            sentence=str(result.get("sentence") or ""),
            because=str(result.get("because") or ""),
            mtp=result["mtp"],
            tokens_per_second=mean_of_known(
                run.decode_rate
                for run in session.runs
                if run.is_counted and settings_key(run.settings) == settings_key(settings)
            ),
            workload=session.workload,
            goal=str(result.get("goal") or "speed"),
            measurement=session.id,
            measured_s=session.ended_s or session.began_s,
            environment=session.environment,
            **figures,
        )
        return cls(settings=dict(settings), evidence=evidence, verified_by=(session.id,), path=path)

    def export_text(self) -> str:
        """Return the text of a file for another machine, without personal data."""
        data = self.model_dump(mode="json", exclude={"path", "verified_by"})
        evidence = data["evidence"]
        evidence["environment"]["model"]["file"] = None
        if evidence["workload"] not in {each.name for each in shipped_workloads()}:
            texts = {name: evidence[name] for name in ("sentence", "because", "workload")}
            evidence |= remove_own_names(texts, evidence["workload"])
        return json.dumps(remove_personal_data(data), ensure_ascii=False, indent=1) + "\n"


class _File(BaseModel):
    version: Literal[1] = 1
    presets: list[TunedSettings] = Field(default=[])


def tuned_settings_file() -> Path:
    """Return the path of the file with all tuned settings."""
    return data_dir() / "history" / "tuned-settings.json"


def load_tuned_settings() -> tuple[TunedSettings, ...]:
    """Return the tuned settings of all models. Empty if their file cannot be read; a damaged file is renamed."""
    with suppress(OSError):
        return tuple(_FILE.load(tuned_settings_file()).presets)
    return ()


def find_tuned_settings(model: ModelFacts) -> TunedSettings | None:
    """Return the tuned settings of a model and quantisation. None if there are none."""
    return next((each for each in load_tuned_settings() if _model_key(each) == (model.name, model.quant)), None)


def save_tuned_settings(tuned: TunedSettings) -> None:
    """Save tuned settings, replacing those of the same model and quantisation. Raises OSError."""
    _update_file([tuned], [_model_key(tuned)])


def save_tune_result(measurement: str, path: Path) -> TunedSettings:
    """Save the result of a tune as the tuned settings of its model, whose file is `path`, and return them.

    `measurement` is the id of the tune's session in the history. An unknown SHA-256 of the model is computed, which
    reads all its files. Raises HistoryUnusable, ResultMissing, NothingMeasured, ModelMissing and OSError.
    """
    with History() as history:
        session = history.load(measurement)
    environment = session.environment
    if not environment.model.sha256:
        model = model_facts(read_model(path), compute=True)
        session = replace(session, environment=replace(environment, model=model))
    tuned = TunedSettings.from_session(session, path=path)
    save_tuned_settings(tuned)
    return tuned


def delete_tuned_settings(tuned: TunedSettings) -> None:
    """Delete the tuned settings of this model and quantisation. Raises OSError."""
    _update_file([], [_model_key(tuned)])


def load_tuned_settings_by_name(text: str) -> TunedSettings:
    """Return the one record whose model name or quant contains `text`. Raises ResultMissing unless exactly one does."""
    found = [
        each for each in load_tuned_settings() if text.lower() in f"{each.model.name} {each.model.quant or ''}".lower()
    ]
    if len(found) != 1:
        what = (
            message("{found} tuned settings match {text}.", found=len(found), text=text)
            if found
            else message("There are no tuned settings for {text}.", text=text)
        )
        raise ResultMissing(what, message("See `mtp-launcher preset`."), wanted=text)
    return found[0]


def read_tuned_settings(path: Path) -> TunedSettings:
    """Read a file that `export_text` wrote, as unverified settings. Raises ResultMissing and ResultUnreadable."""
    try:
        read = TunedSettings.model_validate_json(read_bytes(path, _MOST_BYTES))
    except ValidationError as error:
        hint = message("`mtp-launcher preset export MODEL --to FILE.json` writes one.")
        raise ResultUnreadable(
            message("{path} is not a file of tuned settings.", path=path), hint, path=str(path)
        ) from error
    return read.model_copy(update={"verified_by": (), "path": None})


def find_confirming_sessions(tuned: TunedSettings, history: History, here: Environment) -> tuple[str, ...]:
    """Return the ids of this machine's sessions that confirm tuned settings. Empty if none do.

    The sessions have the hardware, driver, engine and model of `here`, and one workload. For settings with MTP, they
    must show at 95 % confidence that these are faster than no MTP; for settings without, that no measured draft length
    is faster by more than MARGIN. Both sides need FEWEST_STARTS starts.
    """
    by_workload: dict[str, list[Session]] = {}
    for summary in history.find_sessions(model=tuned.model.name):
        if summary.counted:
            session = history.load(summary.id)
            if not session.environment.differences(here):
                by_workload.setdefault(session.workload, []).append(session)
    for sessions in by_workload.values():
        if _is_confirmed(tuned, sessions):
            return tuple(session.id for session in sessions)
    return ()


def _is_confirmed(tuned: TunedSettings, sessions: Sequence[Session]) -> bool:
    """Return whether sessions of one workload confirm tuned settings. See `find_confirming_sessions`."""
    together = len(sessions) == 1
    by_settings: dict[Key, list[ServerStart]] = {}
    for number, session in enumerate(sessions):
        for starts in group_starts(run for run in session.runs if run.is_counted):
            renumbered = [replace(start, number=start.number + number * _SESSION_OFFSET) for start in starts]
            by_settings.setdefault(settings_key(starts[0].runs[0].settings), []).extend(renumbered)
    own: list[ServerStart] = []
    without_mtp: list[ServerStart] = []
    with_mtp: list[list[ServerStart]] = []
    for key, starts in by_settings.items():
        if _settings_match(dict(key), tuned.settings):
            own += starts
        if draft_length(dict(key)):
            with_mtp.append(starts)
        else:
            without_mtp += starts
    if not own:
        return False
    if draft_length(tuned.settings):
        return bool(without_mtp) and speedup_of_starts(without_mtp, own, together=together, by_start=True).ratio.low > 1
    ratios = [speedup_of_starts(own, starts, together=together).ratio for starts in with_mtp]
    enough = len(own) >= FEWEST_STARTS and any(len(starts) >= FEWEST_STARTS for starts in with_mtp)
    return enough and all(ratio.high < 1 + MARGIN for ratio in ratios)


def _settings_match(settings: RunSettings, wanted: RunSettings) -> bool:
    """Return whether two sets of settings agree in the draft length and in all other settings that both contain."""
    if draft_length(settings) != draft_length(wanted):
        return False
    return all(settings[name] == value for name, value in wanted.items() if name in settings and name != DRAFT)


def _model_key(tuned: TunedSettings) -> tuple[str, str | None]:
    return tuned.model.name, tuned.model.quant


def _update_file(added: Sequence[TunedSettings], removed: Sequence[tuple[str, str | None]]) -> None:
    """Change the file: first remove the tuned settings of some models, then add others. Raises OSError."""
    path = tuned_settings_file()
    make_private_folder(path.parent)
    try:
        with hold_file_lock(path, _LOCK_S):
            kept = [each for each in _FILE.load(tuned_settings_file()).presets if _model_key(each) not in removed]
            file = _File(presets=[*kept[-_MOST_RECORDS:], *added])
            _FILE.save(path, file.model_dump_json(indent=1).encode())
    except TimeoutError as error:
        raise OSError(f"{path} is held by another program") from error


_FILE = KeptFile(
    "The list of tuned settings",
    _File.model_validate_json,
    _File,
    private=True,
    has_second_copy=True,
    former_name="presets.json",
)


def tuned_settings_data(tuned: TunedSettings) -> dict[str, Any]:
    """Return tuned settings as JSON data."""
    return {**tuned.model_dump(mode="json"), "verified": tuned.verified}
