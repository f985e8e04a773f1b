"""Checks by its header that a downloaded file is the expected model, whatever its name."""

import re
from collections.abc import Iterator
from contextlib import suppress
from dataclasses import dataclass, fields
from pathlib import Path, PurePosixPath

from launcher.base.errors import GeometryUnknown, LauncherError, ModelHasNoHead, ModelUnexpected
from launcher.base.messages import FaceName, message
from launcher.models.catalogue import ModelEntry, ModelFile
from launcher.models.file_kinds import FileKind, recognise_file, recognise_name
from launcher.models.geometry import Geometry, read_geometry
from launcher.models.gguf import GgufModel, MtpHead, check_complete, read_model
from launcher.models.header_summary import store_summary
from launcher.models.library_index import Head, Kind

_WITH_HEAD = re.compile(r"(?<![a-z0-9])mtp(?![a-z0-9])", re.IGNORECASE)
_EDITED_FIELDS = frozenset({"trained_context", "vocabulary"})
"""Fields that quantisers edit or pad, so a difference does not mean another model."""


@dataclass(frozen=True, slots=True)
class HeaderCheck:
    """The result of a header check: the state of the MTP head, the model's name, its problem or None, and its kind.

    `kind` is None for a model.
    """

    head: Head
    name: str
    problem: LauncherError | None
    kind: FileKind | None = None


def promises_head(repo: str | None, file: str) -> bool:
    """Return whether the name of a model's file or repository promises an MTP head inside.

    A file whose name begins with mtp- is a separate MTP head, so for that the answer is False.
    """
    name = PurePosixPath(file).name
    if recognise_name(name) is not None:
        return False
    return bool(_WITH_HEAD.search(name) or _WITH_HEAD.search((repo or "").rpartition("/")[2]))


def check_received(
    path: Path,
    kind: Kind = "model",
    *,
    entry: ModelEntry | None = None,
    file: ModelFile | None = None,
    head: bool = False,
) -> HeaderCheck:
    """Read the headers of the model whose first file is at `path`, and compare them with the expected model.

    `entry` and `file` are the catalogue's; `head` is whether its name promises an MTP head. Raises ModelMissing or
    ModelBroken for a file that is not a complete GGUF; that it is another model is returned in `problem`.
    """
    model = read_model(path)
    check_complete(*model.parts)
    problem = next(_find_problems(model, path, kind, entry, file, head), None)
    return HeaderCheck(model.mtp_head.value, model.name, problem, recognise_file(model))


def store_header(path: Path, sha256: str) -> None:
    """Store the header summary of a downloaded file for plans. Failures are ignored: it is only a cache."""
    with suppress(OSError, LauncherError):
        (header,) = read_model(path).parts
        store_summary(sha256, header)


def _find_problems(
    model: GgufModel, path: Path, kind: Kind, entry: ModelEntry | None, file: ModelFile | None, head: bool
) -> Iterator[LauncherError]:
    found = recognise_file(model)
    # A draft may be a model, too: a smaller one of the same vocabulary.
    is_draft = kind == "draft" and found is None
    if kind != "other" and (found.role if found else "model") != kind and not is_draft:
        wanted = {"mmproj": message("a vision projector"), "draft": message("a draft")}.get(kind, message("a model"))
        yield ModelUnexpected(
            message(
                "{name} is {found}, not {wanted}.",
                name=path.name,
                found=found.label if found else message("a model ({architecture})", architecture=model.architecture),
                wanted=wanted,
            ),
            found.cure if found else message("The file is kept. Find the right one on the repository's page."),
        )
        return
    if kind != "model":
        return
    promised = entry.has_head(file) if entry and file else head
    if promised and model.mtp_head is not MtpHead.PRESENT:
        why = (
            message("its metadata lists one, but the tensors are missing")
            if model.promised_heads
            else message("no MTP tensors")
        )
        yield ModelHasNoHead(
            message(
                "{name} should have an MTP head but has none ({why}). It was probably uploaded again without it.",
                name=path.name,
                why=why,
            ),
            message(
                "It is saved at {path} and runs with MTP off[ ({mtp_off})]. For MTP choose another file[, or "
                "an earlier revision with {revision}].",
                path=path,
                mtp_off=FaceName("--draft 0"),
                revision=FaceName("--revision"),
            ),
            path=str(path),
        )
    if entry and entry.geometry and (differs := describe_differences(model, entry.geometry)):
        yield ModelUnexpected(
            message("{name} is not {model}: {differs}.", name=path.name, model=entry.name, differs=differs),
            message("It is saved at {path}, but plans for {id} do not apply to it.", path=path, id=entry.id),
            path=str(path),
        )


def describe_differences(model: GgufModel, wanted: Geometry) -> str:
    """Return, in words, the differences of a model's geometry from `wanted`, MTP heads aside; "" if there are none."""
    if model.architecture != wanted.architecture:
        return message(
            "its architecture is {found} in place of {wanted}", found=model.architecture, wanted=wanted.architecture
        )
    try:
        found = read_geometry(model)
    except GeometryUnknown:
        return ""
    names = [each.name for each in fields(Geometry) if each.name not in _EDITED_FIELDS | {"mtp_layers"}]
    lines = [
        f"{name.replace('_', ' ')} {getattr(found, name)} in place of {getattr(wanted, name)}"
        for name in names
        if getattr(found, name) != getattr(wanted, name)
    ]
    return ", ".join(lines[:3]) + (f" and {len(lines) - 3} more" if len(lines) > 3 else "")
