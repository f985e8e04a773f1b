"""The files of a repository on the hub: its models, told from files that are mistaken for models.

A name is a hint. The header decides, and is read of the files that the user means, and of those that are far too small
for their quantisation: a few MB each, which are cached.
"""

from collections.abc import Iterator
from contextlib import suppress
from pathlib import PurePosixPath

from launcher.base.errors import LauncherError, ModelBroken
from launcher.base.messages import Message, join_messages, message
from launcher.fetch.hub import HubFile, RepoListing, list_files
from launcher.models.catalogue import CompanionFile, FilePart, ModelFile
from launcher.models.drafters import Drafter
from launcher.models.file_entry import count_parameters
from launcher.models.file_kinds import FileKind, OtherFile, kind_of_broken, recognise_file, recognise_name
from launcher.models.file_size import bits_per_weight
from launcher.models.gguf import GgufModel
from launcher.models.gguf_remote import read_remote_model
from launcher.models.library import parse_quant, split_names
from launcher.models.side_files import USUAL_DRAFT_QUANT, draft_preference

_MOST_HEADERS = 8
"""Headers that are read because of a size, at most."""
_LEAST_SHARE = 0.5
"""Share of the size expected for its quantisation below which a file may be another kind of file."""


class Repository:
    """A listed repository, and the kinds of its files that are no models: by the headers read so far, else by names."""

    def __init__(self, listing: RepoListing) -> None:
        self.listing = listing
        files = [path for path in listing.files if path.lower().endswith(".gguf")]
        self._files = [path for path in sorted(files) if split_names(path)[0] == path]
        hints = {path: kind for path in self._files if (kind := recognise_name(path))}
        self._has_hints_only = bool(self._files) and len(hints) == len(self._files)
        self._kinds = {} if self._has_hints_only else hints
        self._headers: dict[str, GgufModel] = {}

    @property
    def has_models(self) -> bool:
        """Whether a file is a model: by the names, and by the headers as far as they were read."""
        return not self._has_hints_only and bool(self.list_models())

    def read_model(self, path: str) -> GgufModel:
        """Return the header of a file, and keep its kind. Raises ModelBroken, and the errors of requests to the hub."""
        if path not in self._headers:
            try:
                model = read_remote_model(HubFile(self.listing.repo, path, self.listing.revision)).model
            except ModelBroken as error:
                self._kinds[path] = kind_of_broken(error)
                raise
            kind = recognise_file(model)
            self._kinds.pop(path, None)
            if kind is not None:
                self._kinds[path] = kind
            self._headers[path] = model
        return self._headers[path]

    def find_kind(self, path: str) -> FileKind | None:
        """Return the kind of a file by its header, or by its name if that cannot be read; None for a model."""
        with suppress(LauncherError):  # whoever uses the file reports it
            self.read_model(path)
        return self._kinds.get(path)

    def find_quant(self, quant: str) -> tuple[list[str], list[OtherFile]]:
        """Return the models with a quantisation, or with it as their file name, and the other files with it."""
        wanted = quant.casefold()
        named = [path for path in self._files if wanted in (_quant_of(path).casefold(), _stem(path).casefold())]
        kinds = {path: self.find_kind(path) for path in named}
        others = [self._describe(path, kind) for path, kind in kinds.items() if kind is not None]
        return [path for path, kind in kinds.items() if kind is None], others

    def explain_quant(self, quant: str | None) -> Message | None:
        """Return what the files with a quantisation are, if they are no models; None if there are none."""
        others = self.find_quant(quant)[1] if quant else []
        return (
            join_messages(*(message("{file} is {what}.", file=each.file, what=each.kind.what) for each in others))
            if others
            else None
        )

    def check_sizes(self, typical: GgufModel) -> None:
        """Read the headers of files that are far smaller than their quantisations of the model `typical` would be."""
        parameters, left = count_parameters(typical), _MOST_HEADERS
        for each in self.list_models():
            bits = bits_per_weight(each.quant)
            is_small = bits is None or (each.size_bytes or 0) < _LEAST_SHARE * parameters * bits[0] / 8
            if is_small and left and each.file not in self._headers:
                left -= 1
                self.find_kind(each.file)

    def list_models(self) -> list[ModelFile]:
        """Return the models, the smallest first.

        If several have the same quantisation, all but the first are named by their files.
        """
        found: list[ModelFile] = []
        quants: set[str] = set()
        for path in self._files:
            names = split_names(path)
            if path in self._kinds or any(each not in self.listing.files for each in names):
                continue
            quant = _quant_of(path) or _stem(path)
            quant = _stem(path) if quant in quants else quant
            quants.add(quant)
            parts = [self.listing.files[each] for each in names]
            file_parts: tuple[FilePart, ...] = ()
            if len(parts) > 1:
                file_parts = tuple(
                    FilePart(file=each, size_bytes=part.bytes or None, sha256=part.sha256)
                    for each, part in zip(names, parts, strict=True)
                )
            found.append(
                ModelFile(
                    quant=quant,
                    file=path,
                    size_bytes=sum(part.bytes for part in parts) or None,
                    sha256=None if file_parts else parts[0].sha256,
                    parts=file_parts,
                )
            )
        return sorted(found, key=lambda each: each.size_bytes or 0)

    def list_others(self) -> tuple[OtherFile, ...]:
        """Return the files that are no models."""
        return tuple(self._describe(path, kind) for path, kind in self._kinds.items())

    def list_companions(self, name: str) -> Iterator[CompanionFile]:
        """Yield the files of a kind, as companions of a model."""
        for each in self.list_others():
            if each.kind.name == name:
                listed = self.listing.files[each.file]
                yield CompanionFile(file=each.file, size_bytes=each.size_bytes, sha256=listed.sha256)

    def list_drafts(self, drafter: Drafter, quant: str | None = USUAL_DRAFT_QUANT) -> list[CompanionFile]:
        """Return the files of a drafter, the best one for a model of `quant` first."""
        drafts = (each for kind in drafter.files for each in self.list_companions(kind))
        return sorted(drafts, key=lambda each: draft_preference(each.file, each.size_bytes or 0, quant))

    def _describe(self, path: str, kind: FileKind) -> OtherFile:
        return OtherFile(path, self.listing.files[path].bytes or None, kind)


def recognise_remote(file: HubFile) -> FileKind | None:
    """Return the kind of a file on the hub by its header, which is cached; None for a model.

    Raises ModelBroken, and the errors of requests to the hub.
    """
    return recognise_file(read_remote_model(file).model)


def read_repository(repo: str, revision: str | None) -> Repository:
    """List a repository. Raises the errors of `list_files`."""
    return Repository(list_files(repo, revision))


def _stem(path: str) -> str:
    return PurePosixPath(path).name.removesuffix(".gguf")


def _quant_of(path: str) -> str:
    return parse_quant(PurePosixPath(path).name) or ""
