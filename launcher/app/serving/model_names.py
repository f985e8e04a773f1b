"""Names that the user gives to models: aliases with settings and a system text, and the models that stay loaded."""

import re
from collections.abc import Callable, Mapping
from contextlib import suppress
from functools import lru_cache
from pathlib import Path
from typing import ClassVar

from launcher.base.errors import BadOption
from launcher.base.files import make_private_folder
from launcher.base.kept_files import KeptFile, hold_file_lock
from launcher.base.messages import message
from launcher.base.paths import config_dir
from launcher.base.validation import BaseModel, ConfigDict
from launcher.engine.settings import parse_settings
from launcher.models.server_settings import Value

_ALIAS = re.compile(r"[A-Za-z0-9][A-Za-z0-9._:/-]{0,63}")
_LOCK_S = 5.0


class ModelAlias(BaseModel):
    """A name for a model. `settings` are those that it is served with, as users write them.

    `system` goes before conversations that have no system text.
    """

    model_config: ClassVar[ConfigDict] = ConfigDict(extra="forbid", frozen=True)

    name: str
    model: str
    settings: dict[str, str] = {}
    system: str = ""

    @property
    def values(self) -> Mapping[str, Value]:
        """The settings by name. Raises BadOption if this version does not know one."""
        return parse_settings(self.settings)


class ModelNames(BaseModel):
    """The content of model-names.json. `kept` are the names of models that stay loaded."""

    model_config: ClassVar[ConfigDict] = ConfigDict(extra="forbid")

    aliases: list[ModelAlias] = []
    kept: list[str] = []

    def find_alias(self, name: str) -> ModelAlias | None:
        """Return the alias of this name, or None."""
        return next((each for each in self.aliases if each.name == name), None)


_FILE = KeptFile("The list of model aliases", ModelNames.model_validate_json, ModelNames, has_second_copy=True)


def read_model_names(path: Path | None = None) -> ModelNames:
    """Return the names; none if their file is unreadable. `path` is what `names_path` has returned, if that is known.

    While the file has not changed, the same object is returned again, so do not change it.
    """
    path = path or names_path()
    identity: tuple[int, ...] = ()
    try:
        stat = path.stat()
        identity = (stat.st_ino, stat.st_mtime_ns, stat.st_size)
    except FileNotFoundError:
        return ModelNames()
    except OSError:
        pass  # loading it says why
    with suppress(OSError):
        return _read_names(path, identity)
    return ModelNames()


@lru_cache(maxsize=1)
def _read_names(path: Path, _identity: tuple[int, ...]) -> ModelNames:
    return _FILE.load(path)


def add_alias(alias: ModelAlias) -> None:
    """Keep an alias, in place of another one of its name. Raises BadOption for its name or a setting, and OSError."""
    if not _ALIAS.fullmatch(alias.name):
        raise BadOption(
            message("{name} cannot be the name of a model.", name=alias.name),
            message("Use up to 64 letters, digits, dots, hyphens, underscores, colons and slashes."),
        )
    parse_settings(alias.settings)
    _change_names(lambda names: _replace_alias(names, alias.name, alias))


def remove_alias(name: str) -> bool:
    """Forget an alias; return whether there was one. Raises OSError."""
    known = read_model_names().find_alias(name) is not None
    if known:
        _change_names(lambda names: _replace_alias(names, name))
    return known


def keep_model(name: str, *, kept: bool = True) -> bool:
    """Have a model stay loaded, or no longer; return whether that changed anything. Raises OSError."""
    if (name in read_model_names().kept) == kept:
        return False

    def change(names: ModelNames) -> None:
        names.kept = [*(each for each in names.kept if each != name), *([name] if kept else [])]

    _change_names(change)
    return True


def _replace_alias(names: ModelNames, name: str, *replacement: ModelAlias) -> None:
    names.aliases = sorted([*(each for each in names.aliases if each.name != name), *replacement], key=_alias_name)


def _alias_name(alias: ModelAlias) -> str:
    return alias.name


def _change_names(change: Callable[[ModelNames], None]) -> None:
    path = make_private_folder(config_dir()) / names_path().name
    with hold_file_lock(path, _LOCK_S):
        names = _FILE.load(path)
        change(names)
        _FILE.save(path, names.model_dump_json(indent=1).encode())


def names_path() -> Path:
    """Return the path of the file with the names."""
    return config_dir() / "model-names.json"
