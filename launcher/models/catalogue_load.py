"""Loads the catalogue from the shipped presets/ and from models/ and presets/ in the user's config folder.

Shipped files are checked against the schema by a test, and read without pydantic, whose import alone takes longer than
reading all of them. The user's files are validated at each load.
"""

import tomllib
from collections.abc import Callable, Iterable, Mapping
from dataclasses import fields, is_dataclass, replace
from functools import cache
from pathlib import Path
from types import UnionType
from typing import Any, TypeVar, get_args, get_origin, get_type_hints

from launcher.base.paths import config_dir, expand_user, shipped_file
from launcher.models.catalogue import Catalogue, CatalogueProblem, ModelEntry
from launcher.models.evidence import family_key, read_published_runs
from launcher.models.hub_figures import figures_folder, fill_from_hub_cache
from launcher.models.preset import Preset

T = TypeVar("T")
_OWN_MODELS, _OWN_PRESETS = "models", "presets"


def load_catalogue(config: Path | None = None, *, hub_figures: bool = True) -> Catalogue:
    """Load the shipped models and the user's own from `config` (default: the config folder).

    With `hub_figures`, missing sizes and checksums are filled from the cached replies of the hub. An invalid file,
    model or preset of the user's is left out and listed in `Catalogue.problems`.
    """
    models = {model.id: model for model in shipped_models()}
    problems: list[CatalogueProblem] = []
    folder = config_dir() if config is None else config
    if own := sorted(folder.joinpath(_OWN_MODELS).glob("*.toml")):
        problems += _add_models(models, own)
    if own := sorted(folder.joinpath(_OWN_PRESETS).glob("*.toml")):
        problems += _add_presets(models, own)
    if hub_figures:
        answers = figures_folder()
        models = {model.id: fill_from_hub_cache(model, answers) for model in models.values()}
    return Catalogue(tuple(models.values()), tuple(problems))


@cache
def shipped_models() -> tuple[ModelEntry, ...]:
    """Read the models that ship with the program."""
    paths = sorted(shipped_file("presets").glob("*.toml"))
    models = (
        build_dataclass(ModelEntry, entry)
        for path in paths
        for entry in tomllib.loads(path.read_text("utf-8")).get("models", ())
    )
    runs = read_published_runs()
    return tuple(replace(model, measurements=runs.get(family_key(model.family), ())) for model in models)


def build_dataclass(cls: Callable[..., T], data: Mapping[str, Any]) -> T:
    """Build a dataclass from a TOML table, nested tables included. The table must be valid by the schema."""
    return cls(**{name: _convert(kind, data[name]) for name, kind in _field_types(cls) if name in data})


@cache
def _field_types(cls: Any) -> list[tuple[str, Any]]:  # noqa: ANN401 -- a dataclass
    hints = get_type_hints(cls)
    return [(field.name, _without_none(hints[field.name])) for field in fields(cls)]


def _without_none(kind: Any) -> Any:  # noqa: ANN401 -- a type expression
    if get_origin(kind) is UnionType or type(None) in get_args(kind):
        return next(choice for choice in get_args(kind) if choice is not type(None))
    return kind


def _convert(kind: Any, value: Any) -> Any:  # noqa: ANN401 -- any TOML value
    if get_origin(kind) is tuple:
        inner = get_args(kind)[0]
        return tuple(_convert(inner, item) for item in value)
    if is_dataclass(kind):
        return build_dataclass(kind, value)  # type: ignore[arg-type]
    return float(value) if kind is float else value


def _add_models(models: dict[str, ModelEntry], paths: Iterable[Path]) -> list[CatalogueProblem]:
    from launcher.models.catalogue_schema import ModelsFile, UserFile, find_contradictions  # late: it imports pydantic

    problems: list[CatalogueProblem] = []
    for path in paths:
        source = UserFile.read(path, problems)
        for index, table in source.valid_tables(ModelsFile, "models"):
            model = _resolve_paths(build_dataclass(ModelEntry, table), path.parent)
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
            preset, model = build_dataclass(Preset, table), models.get(table["model"])
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
    files = tuple(replace(file, file=_path(folder, file.file)) for file in model.files)
    draft = model.draft
    if draft and not draft.repo:
        draft = replace(draft, file=_path(folder, draft.file))
    mmproj = tuple(each if each.repo else replace(each, file=_path(folder, each.file)) for each in model.mmproj)
    return replace(model, files=files, draft=draft, mmproj=mmproj)


def _path(folder: Path, name: str) -> str:
    return str(folder / expand_user(name))
