"""What is particular about a fork of llama.cpp: KV cache types that only it has, and variables that it wants."""

import tomllib
from collections.abc import Collection, Mapping
from dataclasses import dataclass
from pathlib import Path

from launcher.base.paths import config_dir, shipped
from launcher.engine.install_errors import BadProfile


@dataclass(frozen=True, slots=True)
class EngineProfile:
    """A fork. `kv_types` are what it is known by: a build whose --help offers all of them is taken for it."""

    name: str
    kv_types: tuple[str, ...]
    environment: Mapping[str, str]
    note: str = ""
    source: str = ""


def profile_for(kv_types: Collection[str]) -> EngineProfile | None:
    """Return the profile of a build that offers `kv_types`; None for llama.cpp itself and for forks that are not known.

    Profiles lie in presets/engines/ and, the user's own, in engines/ of the config folder. Raises BadProfile when one
    of the user's cannot be read.
    """
    places = [*sorted((config_dir() / "engines").glob("*.toml")), *sorted(shipped("presets", "engines").glob("*.toml"))]
    profiles = map(_read, places)
    return next((profile for profile in profiles if set(profile.kv_types) <= set(kv_types)), None)


def _read(path: Path) -> EngineProfile:
    try:
        data = tomllib.loads(path.read_text("utf-8"))
    except (OSError, ValueError) as error:
        raise BadProfile(f"{path} cannot be read: {error}.", "Mend it or move it away.", path=str(path)) from error
    kv_types, environment = data.get("kv_types"), data.get("environment", {})
    if not kv_types or not isinstance(kv_types, list) or not all(isinstance(kind, str) for kind in kv_types):
        raise _bad(path, "kv_types must be a list of the fork's own KV cache types")
    if not isinstance(environment, dict) or not all(isinstance(value, str) for value in environment.values()):
        raise _bad(path, "environment must be a table of texts")
    told = {name: str(data.get(name, "")) for name in ("note", "source")}
    return EngineProfile(str(data.get("name", path.stem)), tuple(kv_types), environment, **told)


def _bad(path: Path, why: str) -> BadProfile:
    return BadProfile(f"{path} is no engine profile: {why}.", "Mend it or move it away.", path=str(path))
