"""Whether a file that has arrived is the model that it was taken for: its header says so, whatever its name."""

import re
from collections.abc import Iterator
from contextlib import suppress
from dataclasses import dataclass, fields
from pathlib import Path, PurePosixPath

from launcher.base.errors import GeometryUnknown, LauncherError, ModelHasNoHead, ModelUnexpected
from launcher.base.words import part
from launcher.models.catalogue import ModelEntry, ModelFile
from launcher.models.geometry import Geometry, geometry_of
from launcher.models.gguf import check_complete, read_model
from launcher.models.gguf_header import GgufModel, MtpHead
from launcher.models.header_summary import keep_summary
from launcher.models.library_index import Head, Kind

_WITH_HEAD = re.compile(r"(?<![a-z0-9])mtp(?![a-z0-9])", re.IGNORECASE)
_PROJECTOR_ARCHITECTURE = "clip"
_UNSURE = frozenset({"trained_context", "vocabulary"})
"""Figures that quantisers edit, or pad, without making another model of it."""


@dataclass(frozen=True, slots=True)
class Checked:
    """What a header told: whether the MTP head is there, and what is wrong with the model, None when nothing is."""

    head: Head
    name: str
    problem: LauncherError | None


def promises_head(repo: str | None, file: str) -> bool:
    """Return whether the name of a model's file or of its repository promises an MTP head inside.

    A file whose name begins with mtp- is such a head itself.
    """
    name = PurePosixPath(file).name
    if name.lower().startswith(("mtp-", "mmproj")):
        return False
    return bool(_WITH_HEAD.search(name) or _WITH_HEAD.search((repo or "").rpartition("/")[2]))


def check_received(
    path: Path,
    kind: Kind = "model",
    *,
    entry: ModelEntry | None = None,
    file: ModelFile | None = None,
    head: bool = False,
) -> Checked:
    """Read the headers of the model whose first file is at `path`, and compare it with what it should be.

    `entry` and `file` are the catalogue's, `head` says that its name promises an MTP head. What is no whole GGUF raises
    ModelMissing or ModelBroken; what is another model than it should be is told in `problem`.
    """
    model = read_model(path)
    check_complete(*model.parts)
    return Checked(model.mtp_head.value, model.name, next(_problems(model, path, kind, entry, file, head), None))


def keep_header(path: Path, sha256: str) -> None:
    """Let plans count a received file's own tensors. Nothing depends on its success."""
    with suppress(OSError, LauncherError):
        (header,) = read_model(path).parts
        keep_summary(sha256, header)


def _problems(
    model: GgufModel, path: Path, kind: Kind, entry: ModelEntry | None, file: ModelFile | None, head: bool
) -> Iterator[LauncherError]:
    is_projector = model.architecture == _PROJECTOR_ARCHITECTURE
    if is_projector is not (kind == "mmproj"):
        found = "a vision projector" if is_projector else part(f"a model ({model.architecture})")
        wanted = {"mmproj": "a vision projector", "draft": "a draft"}.get(kind, "a model")
        yield ModelUnexpected(
            f"{path.name} is {found}, not {wanted}.", "It is kept. Look at its repository's page for the right file."
        )
        return
    if kind != "model":
        return
    promised = entry.has_head(file) if entry and file else head
    if promised and model.mtp_head is not MtpHead.PRESENT:
        why = (
            part("its metadata promises one, but the tensors are missing")
            if model.promised_heads
            else part("no MTP tensors")
        )
        yield ModelHasNoHead(
            f"{path.name} should have an MTP head and has none ({why}): it seems to have been uploaded again without.",
            f"It is kept at {path} and runs without MTP (--draft 0). For MTP take another file, or an earlier revision"
            " with --revision.",
            path=str(path),
        )
    if entry and entry.geometry and (differs := _differences(model, entry.geometry)):
        yield ModelUnexpected(
            f"{path.name} is not {entry.name}: {differs}.",
            f"It is kept at {path}, but plans for {entry.id} do not hold for it.",
            path=str(path),
        )


def _differences(model: GgufModel, wanted: Geometry) -> str:
    """Return in words in what a model's shape is not what it should be; its heads are another matter."""
    try:
        found = geometry_of(model)
    except GeometryUnknown:
        return "" if model.architecture == wanted.architecture else part(f"its architecture is {model.architecture}")
    names = [each.name for each in fields(Geometry) if each.name not in _UNSURE | {"mtp_layers"}]
    lines = [
        f"{name.replace('_', ' ')} {getattr(found, name)} in place of {getattr(wanted, name)}"
        for name in names
        if getattr(found, name) != getattr(wanted, name)
    ]
    return ", ".join(lines[:3]) + (f" and {len(lines) - 3} more" if len(lines) > 3 else "")
