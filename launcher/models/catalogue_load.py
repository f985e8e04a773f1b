"""The catalogue from its files: the shipped presets/, and models/ and presets/ in the user's config folder.

Shipped files are held to the schema by a test and read without pydantic, whose import alone takes longer than all of
them. The user's files are checked each time.
"""

import tomllib
from collections.abc import Callable, Iterable, Mapping
from dataclasses import fields, is_dataclass, replace
from functools import cache
from pathlib import Path
from types import UnionType
from typing import Any, TypeVar, get_args, get_origin, get_type_hints

from launcher.base.paths import config_dir, expanded, shipped
from launcher.models.catalogue import Catalogue, ModelEntry, Problem
from launcher.models.hub_figures import figures_folder, with_kept_figures
from launcher.models.preset import Preset

T = TypeVar("T")
_OWN_MODELS, _OWN_PRESETS = "models", "presets"


def load_catalogue(config: Path | None = None, *, hub_figures: bool = True) -> Catalogue:
    """Read the shipped models and the user's own from `config` (default: the config folder).

    What the hub has told earlier fills what they leave open, unless `hub_figures` is off. A file, model or preset of
    the user's that is wrong is left out and told in `Catalogue.problems`.
    """
    models = {model.id: model for model in shipped_models()}
    problems: list[Problem] = []
    folder = config_dir() if config is None else config
    if own := sorted(folder.joinpath(_OWN_MODELS).glob("*.toml")):
        problems += _add_models(models, own)
    if own := sorted(folder.joinpath(_OWN_PRESETS).glob("*.toml")):
        problems += _add_presets(models, own)
    if hub_figures:
        answers = figures_folder()
        models = {model.id: with_kept_figures(model, answers) for model in models.values()}
    return Catalogue(tuple(models.values()), tuple(problems))


def shipped_models() -> list[ModelEntry]:
    """Read the models that ship with the program."""
    paths = sorted(shipped("presets").glob("*.toml"))
    return [build(ModelEntry, entry) for path in paths for entry in tomllib.loads(path.read_text("utf-8"))["models"]]


def build(cls: Callable[..., T], data: Mapping[str, Any]) -> T:
    """Turn a table of a file into its dataclass, the tables inside it too. The table must fit the schema."""
    return cls(**{name: _convert(kind, data[name]) for name, kind in _kinds(cls) if name in data})


@cache
def _kinds(cls: Any) -> list[tuple[str, Any]]:  # noqa: ANN401 -- a dataclass
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
        return build(kind, value)  # type: ignore[arg-type]
    return float(value) if kind is float else value


def _add_models(models: dict[str, ModelEntry], paths: Iterable[Path]) -> list[Problem]:
    from launcher.models.catalogue_schema import ModelsFile, Source, contradictions

    problems: list[Problem] = []
    for path in paths:
        source = Source.read(path, problems)
        for index, table in source.good_tables(ModelsFile, "models"):
            model = _at_home(build(ModelEntry, table), path.parent)
            wrong = list(contradictions(model))
            if model.id in models:
                wrong.append((("id",), f'the catalogue has a model "{model.id}" already'))
            for place, reason in wrong:
                source.blame(("models", index, *place), reason)
            if not wrong:
                models[model.id] = model
    return problems


def _add_presets(models: dict[str, ModelEntry], paths: Iterable[Path]) -> list[Problem]:
    from launcher.models.catalogue_schema import PresetsFile, Source, preset_contradictions

    problems: list[Problem] = []
    own: dict[str, list[Preset]] = {}
    for path in paths:
        source = Source.read(path, problems)
        for index, table in source.good_tables(PresetsFile, "presets"):
            preset, model = build(Preset, table), models.get(table["model"])
            if model is None:
                source.blame(("presets", index, "model"), f'the catalogue has no model "{table["model"]}"')
                continue
            wrong = list(preset_contradictions(preset, model))
            for place, reason in wrong:
                source.blame(("presets", index, *place), reason)
            if not wrong:
                told = preset if preset.source else replace(preset, source=f"your own, {path.name}")
                own.setdefault(model.id, []).append(told)
    for model_id, presets in own.items():
        models[model_id] = replace(models[model_id], presets=(*presets, *models[model_id].presets))
    return problems


def _at_home(model: ModelEntry, folder: Path) -> ModelEntry:
    """Take the paths of a model without a repository from the folder of its description."""
    if model.repo:
        return model
    files = tuple(replace(file, file=_path(folder, file.file)) for file in model.files)
    draft = model.draft
    if draft and not draft.repo:
        draft = replace(draft, file=_path(folder, draft.file))
    mmproj = tuple(each if each.repo else replace(each, file=_path(folder, each.file)) for each in model.mmproj)
    return replace(model, files=files, draft=draft, mmproj=mmproj)


def _path(folder: Path, name: str) -> str:
    return str(folder / expanded(name))
