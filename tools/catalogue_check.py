"""Compare the shipped catalogue with the hub's listings: which files were replaced, are gone, or are new.

    python -m tools.catalogue_check [ID ...]

Every repository is listed once, at the head of its main branch. Exits with 1 if presets/ must be corrected, or if a
repository could not be listed.
"""

import sys
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import chain
from pathlib import PurePosixPath
from typing import Literal

from launcher.base.errors import LauncherError
from launcher.fetch.hub import ListedFile, RepoListing, list_files
from launcher.models.catalogue import Catalogue, CompanionFile, ModelEntry, ModelFile
from launcher.models.catalogue_load import shipped_models
from launcher.models.gguf import part_names

Kind = Literal["replaced", "gone", "back", "new", "size known"]
_ERROR_KINDS = frozenset({"replaced", "gone", "back", "size known"})
"""Kinds of findings that are errors in presets/. A new file is not, because it may be left out on purpose."""


@dataclass(frozen=True, slots=True)
class Finding:
    """A difference between the catalogue and the hub: the model's id, the file's name, and both figures in words."""

    kind: Kind
    model: str
    file: str
    detail: str = ""

    def __str__(self) -> str:
        return f"{self.kind:<12}{self.model}: {self.file}{f' ({self.detail})' if self.detail else ''}"


def compare_repository(repo: str, models: Sequence[ModelEntry], listing: RepoListing) -> Iterator[Finding]:
    """Yield the differences between the files of `models` and a repository's listing, then files of no model."""
    known: set[str] = set()
    for model in models:
        for file in _files_in(model, repo):
            names = _names_of(file)
            known.update(names)
            yield from _compare_file(model.id, file, names, listing.files)
    for name in sorted(listing.files):
        first = part_names(PurePosixPath(name).name)
        if name.endswith(".gguf") and name not in known and (first is None or name.endswith(first[0])):
            beside = " in its first part" if first else ""
            yield Finding("new", models[0].id, name, f"{listing.files[name].bytes:,} bytes{beside}")


def _files_in(model: ModelEntry, repo: str) -> list[ModelFile | CompanionFile]:
    beside = [*([model.draft] if model.draft else []), *model.mmproj]
    own: Sequence[ModelFile] = model.files if model.repo == repo else ()
    return [*own, *(each for each in beside if model.repo_of(each) == repo)]


def _names_of(file: ModelFile | CompanionFile) -> tuple[str, ...]:
    """Return the names of all parts of a file, or its own."""
    path = PurePosixPath(file.file)
    parts = part_names(path.name)
    return tuple(str(path.with_name(name)) for name in parts) if parts else (file.file,)


def _compare_file(
    model: str, file: ModelFile | CompanionFile, names: Sequence[str], listed: Mapping[str, ListedFile]
) -> Iterator[Finding]:
    found = [listed[name] for name in names if name in listed]
    if isinstance(file, ModelFile) and file.withdrawn:
        if found:
            yield Finding("back", model, file.file)
        return
    if len(found) < len(names):
        yield Finding("gone", model, file.file, f"{len(found)} of {len(names)} parts are there" if found else "")
        return
    size = sum(each.bytes for each in found)
    if file.size_bytes is None:
        yield Finding("size known", model, file.file, f"{size:,} bytes")
    elif file.size_bytes != size:
        yield Finding("replaced", model, file.file, f"{file.size_bytes:,} bytes here, {size:,} there")
    elif len(found) == 1 and file.sha256 and found[0].sha256 not in {None, file.sha256}:
        yield Finding("replaced", model, file.file, f"SHA-256 {file.sha256[:12]} here, {found[0].sha256[:12]} there")


def check_models(models: Sequence[ModelEntry]) -> Iterator[Finding | LauncherError]:
    """Yield the findings of all repositories of `models`, or the error of one that cannot be listed."""
    repos: dict[str, list[ModelEntry]] = {}
    for model in models:
        beside = chain([model.draft] if model.draft else [], model.mmproj)
        for repo in dict.fromkeys([model.repo, *(each.repo for each in beside)]):
            if repo:
                repos.setdefault(repo, []).append(model)
    for repo, having in repos.items():
        try:
            yield from compare_repository(repo, having, list_files(repo))
        except LauncherError as error:
            yield error


def main(ids: Sequence[str]) -> int:
    """Print the findings for the models with these ids, or for all; return the exit status."""
    catalogue = Catalogue(shipped_models())
    models = [catalogue.find(each) for each in ids] or list(catalogue.models)
    failed = False
    for finding in check_models(models):
        print(finding if isinstance(finding, Finding) else f"{'unknown':<12}{finding.title}", flush=True)
        failed = failed or isinstance(finding, LauncherError) or finding.kind in _ERROR_KINDS
    return int(failed)


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
