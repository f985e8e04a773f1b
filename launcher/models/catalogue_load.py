"""Loads the catalogue from the shipped presets/ and from models/ and presets/ in the user's config folder.

Shipped files are checked against the schema by a test, and read without pydantic, whose import alone takes longer than
reading all of them. The user's files are validated at each load.
"""

import json
import tomllib
from collections.abc import Iterable, Mapping
from contextlib import suppress
from dataclasses import replace
from functools import cache
from pathlib import Path
from typing import Any

from launcher import __version__
from launcher.base.codec import from_json, to_json
from launcher.base.files import write_atomically
from launcher.base.kept_files import KeptFile, add_checksum, remove_checksum
from launcher.base.paths import cache_dir, config_dir, expand_user, shipped_file
from launcher.models.catalogue import Catalogue, CatalogueProblem, ModelEntry
from launcher.models.evidence import RUNS_FILE, family_key, read_published_runs
from launcher.models.preset import Preset, PublishedRun

_OWN_MODELS, _OWN_PRESETS = "models", "presets"


def load_catalogue(config: Path | None = None, *, hub_figures: bool = True) -> Catalogue:
    """Load the shipped models and the user's own from `config` (default: the config folder).

    With `hub_figures`, missing sizes and checksums are filled from the cached replies of the hub. An invalid file,
    model or preset of the user's is left out and listed in `Catalogue.problems`.
    """
    is_first = not _read_shipped.cache_info().currsize
    shipped, tables = _read_shipped()
    if is_first and tables:
        _save_copy(tables)
    models = {model.id: model for model in shipped}
    problems: list[CatalogueProblem] = []
    folder = config_dir() if config is None else config
    if own := sorted(folder.joinpath(_OWN_MODELS).glob("*.toml")):
        problems += _add_models(models, own)
    if own := sorted(folder.joinpath(_OWN_PRESETS).glob("*.toml")):
        problems += _add_presets(models, own)
    if hub_figures and (replies := figures_folder()).is_dir():
        from launcher.models.hub_figures import fill_from_hub_cache  # imported late: most users have no replies

        models = {model.id: fill_from_hub_cache(model, replies) for model in models.values()}
    return Catalogue(tuple(models.values()), tuple(problems))


def figures_folder() -> Path:
    """Return the folder of the hub's cached replies, one file per model."""
    return cache_dir() / "hub-figures"


def shipped_models() -> tuple[ModelEntry, ...]:
    """Return the models that ship with the program."""
    return _read_shipped()[0]


@cache
def _read_shipped() -> tuple[tuple[ModelEntry, ...], list[dict[str, Any]]]:
    """Return the shipped models, and the TOML tables that they were read from: none if there is a copy of them.

    The copy in the cache folder is JSON, read in a fifth of the time. It is used if it was made from the same files.
    """
    with suppress(OSError):
        if (kept := _COPY.load(_copy_path())) is not None:
            runs = {
                family: tuple(from_json(PublishedRun, table) for table in tables)
                for family, tables in kept["runs"].items()
            }
            return _make_models(kept["models"], runs), []
    tables = [table for path in _shipped_paths() for table in tomllib.loads(path.read_text("utf-8")).get("models", ())]
    return _make_models(tables, read_published_runs()), tables


def _make_models(
    tables: Iterable[Mapping[str, Any]], runs: Mapping[str, tuple[PublishedRun, ...]]
) -> tuple[ModelEntry, ...]:
    models = (from_json(ModelEntry, table) for table in tables)
    return tuple(replace(model, measurements=runs.get(family_key(model.family), ())) for model in models)


def _save_copy(tables: list[dict[str, Any]]) -> None:
    families = {family_key(table["family"]) for table in tables}
    runs = {family: runs for family, runs in read_published_runs().items() if family in families}
    copy = {"made_from": _describe_shipped(), "models": tables, "runs": to_json(runs, sparse=True)}
    with suppress(OSError):
        write_atomically(_copy_path(), add_checksum(json.dumps(copy, separators=(",", ":")).encode()))


def _copy_path() -> Path:
    return cache_dir() / "catalogue.json"


def _shipped_paths() -> list[Path]:
    return sorted(shipped_file("presets").glob("*.toml"))


@cache
def _describe_shipped() -> list[Any]:
    """Return the program's version, and the path, size and modification time of each file of the catalogue."""
    files = [*_shipped_paths(), shipped_file(*RUNS_FILE)]
    stats = [(str(path), path.stat()) for path in files]
    return [__version__, *([name, stat.st_size, stat.st_mtime_ns] for name, stat in stats)]


def _parse_copy(text: bytes) -> dict[str, Any] | None:
    copy: dict[str, Any] = json.loads(remove_checksum(text))
    return copy if copy["made_from"] == _describe_shipped() else None


_COPY: KeptFile[dict[str, Any] | None] = KeptFile(
    "The copy of the catalogue", _parse_copy, lambda: None, recreatable=True, quiet=True, consequence="it is made again"
)


def _add_models(models: dict[str, ModelEntry], paths: Iterable[Path]) -> list[CatalogueProblem]:
    # Imported late: it imports pydantic.
    from launcher.models.catalogue_schema import ModelsFile, UserFile, find_contradictions

    problems: list[CatalogueProblem] = []
    for path in paths:
        source = UserFile.read(path, problems)
        for index, table in source.valid_tables(ModelsFile, "models"):
            model = _resolve_paths(from_json(ModelEntry, table), path.parent)
            wrong = list(find_contradictions(model))
            if model.id in models:
                wrong.append((("id",), f'the catalogue has a model "{model.id}" already'))
            for place, reason in wrong:
                source.add_problem(("models", index, *place), reason)
            if not wrong:
                models[model.id] = model
    return problems


def _add_presets(models: dict[str, ModelEntry], paths: Iterable[Path]) -> list[CatalogueProblem]:
    from launcher.models.catalogue_schema import PresetsFile, UserFile, find_preset_contradictions

    problems: list[CatalogueProblem] = []
    own: dict[str, list[Preset]] = {}
    for path in paths:
        source = UserFile.read(path, problems)
        for index, table in source.valid_tables(PresetsFile, "presets"):
            preset, model = from_json(Preset, table), models.get(table["model"])
            if model is None:
                source.add_problem(("presets", index, "model"), f'the catalogue has no model "{table["model"]}"')
                continue
            wrong = list(find_preset_contradictions(preset, model))
            for place, reason in wrong:
                source.add_problem(("presets", index, *place), reason)
            if not wrong:
                sourced = preset if preset.source else replace(preset, source=f"your own, {path.name}")
                own.setdefault(model.id, []).append(sourced)
    for model_id, presets in own.items():
        models[model_id] = replace(models[model_id], presets=(*presets, *models[model_id].presets))
    return problems


def _resolve_paths(model: ModelEntry, folder: Path) -> ModelEntry:
    """Resolve the paths of a model without a repository against `folder`, where its TOML file is."""
    if model.repo:
        return model
    files = tuple(replace(file, file=_resolve_path(folder, file.file)) for file in model.files)
    draft = model.draft
    if draft and not draft.repo:
        draft = replace(draft, file=_resolve_path(folder, draft.file))
    drafts = tuple(each if each.repo else replace(each, file=_resolve_path(folder, each.file)) for each in model.drafts)
    mmproj = tuple(each if each.repo else replace(each, file=_resolve_path(folder, each.file)) for each in model.mmproj)
    return replace(model, files=files, draft=draft, drafts=drafts, mmproj=mmproj)


def _resolve_path(folder: Path, name: str) -> str:
    return str(folder / expand_user(name))
