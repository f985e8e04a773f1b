"""Where a model is that the user names in place of a file: by its id in the catalogue, or as a file on the hub."""

from dataclasses import dataclass
from pathlib import Path

from launcher.base.errors import ModelBroken, ModelMissing, ModelUnknown
from launcher.base.paths import expanded
from launcher.fetch.hub import HubFile, is_hub_file
from launcher.models.catalogue import Catalogue, ModelEntry, ModelFile
from launcher.models.library import LocalModel, Place, State, damaged, find, find_file, of_catalogue
from launcher.models.wanted import named_model


@dataclass(frozen=True, slots=True)
class Named:
    """A model that is named: what the catalogue has of it, and where it is here; `local` is None when it is not.

    `command` is what gets it.
    """

    entry: ModelEntry | None
    file: ModelFile | None
    local: LocalModel | None
    command: str

    @property
    def path(self) -> Path:
        """Its first file. Raises ModelMissing when it is not here, ModelBroken when it is known to be damaged."""
        if self.local is None:
            what = self.command.removeprefix("mtp-launcher pull ")
            raise ModelMissing(f"{what} is not on this machine yet.", f"Get it first: `{self.command}`.", wanted=what)
        if self.local.state is State.DAMAGED:
            raise _broken(self.local, self.command)
        return self.local.path


def refuse_damaged(path: Path) -> None:
    """Raise ModelBroken when a file is known to be damaged."""
    local = damaged(path.absolute())
    if local is not None:
        record = local.record
        raise _broken(local, f"mtp-launcher pull {record.words}" if record.repo else "get it again")


def _broken(local: LocalModel, command: str) -> ModelBroken:
    path = local.path
    remove = f"`mtp-launcher models remove {path}`"
    if local.place is Place.CACHE:
        remove = "Delete it in the cache where it lies"
    return ModelBroken(
        f"{path} is damaged: its SHA-256 is not what it should be.",
        f"{remove}, then {f'`{command}`' if command.startswith('mtp-launcher') else command}.",
        path=str(path),
    )


def locate(text: str, catalogue: Catalogue) -> Named | None:
    """Return what `text` names as ID[:QUANT] or OWNER/NAME:FILE; None when it is a path.

    Raises ModelUnknown for a model of the catalogue that has no such file, and for an id that is nearly right;
    ModelBroken for the path of a file that is known to be damaged.
    """
    if expanded(text).exists():
        refuse_damaged(expanded(text))
        return None
    if is_hub_file(text):
        file = HubFile.parse(text)
        entry, its = of_catalogue(catalogue, file.repo, file.path)
        return Named(entry, its, find_file(file.repo, file.path), f"mtp-launcher pull {text}")
    try:
        named = named_model(text, catalogue)
    except ModelUnknown as error:
        if not error.facts.get("near", True):
            return None
        raise
    if named is None:
        return None
    entry, its = named
    local = find(entry, its.quant if its else None)
    if local is not None:
        its = entry.file(local.record.quant or "") or its
    return Named(entry, its, local, f"mtp-launcher pull {text}")
