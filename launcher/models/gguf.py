"""GGUF files on this computer: their headers, read lazily, and whether they are whole."""

from pathlib import Path

from launcher.base.errors import ModelBroken, ModelMissing
from launcher.models.gguf_header import GgufHeader, GgufModel, MtpHead, Tensor, join_parts, part_names
from launcher.models.gguf_parser import parse_header

__all__ = [
    "GgufHeader",
    "GgufModel",
    "MtpHead",
    "Tensor",
    "check_complete",
    "read_header",
    "read_model",
    "read_raw_header",
]


def read_header(path: Path) -> GgufHeader:
    """Read the header of the GGUF file at `path`.

    Raises ModelMissing when it cannot be opened, ModelBroken when it is not a GGUF, is cut short inside the
    header, or makes no sense.
    """
    try:
        if path.exists() and not path.is_file():  # a pipe would be waited for, a device read without end
            kind = "a folder" if path.is_dir() else "not an ordinary file"
            raise ModelMissing(f"{path} is {kind}.", "Name a .gguf file.", path=str(path))
        with path.open("rb") as file:
            size = file.seek(0, 2)
            file.seek(0)
            return parse_header(file, path, size)
    except FileNotFoundError as error:
        hint = (
            "Check the path. `mtp-launcher models list` shows the models that are here, `mtp-launcher pull` gets one."
        )
        raise ModelMissing(f"There is no model file {path}.", hint, path=str(path)) from error
    except OSError as error:
        reason = error.strerror or error
        raise ModelMissing(f"{path} cannot be read: {reason}.", "Check the file's permissions.") from error


def read_raw_header(header: GgufHeader) -> bytes:
    """Return the bytes of a local file from its beginning to where the tensors' data begin.

    Raises ModelMissing when it cannot be read any more.
    """
    try:
        with Path(header.path).open("rb") as file:
            return file.read(header.data_offset).ljust(header.data_offset, b"\0")
    except OSError as error:
        raise ModelMissing(f"{header.path} cannot be read: {error.strerror or error}.", "Is it still there?") from error


def read_model(path: Path) -> GgufModel:
    """Read the headers of the model that the file at `path` belongs to: itself, or all parts of a split model.

    Any part may be named. Raises ModelMissing when a part is missing, ModelBroken when one is damaged or they do not
    belong together. Whether the files are whole is the business of `check_complete(*model.parts)`.
    """
    header = read_header(path)
    count = header.split_count
    if count == 1:
        beside = [name for name in part_names(path.name) or () if path.with_name(name).exists()]
        return join_parts([read_header(path.with_name(name)) for name in beside] if len(beside) > 1 else [header])
    names = part_names(path.name, count)
    if names is None:
        raise ModelMissing(
            f"{path.name} is one of {count} parts of a model but not named like one: the others cannot be found.",
            f"Give it back its name, which ends in -00001-of-{count:05}.gguf.",
            path=str(path),
        )
    missing = [name for name in names if name != path.name and not path.with_name(name).exists()]
    if missing:
        shown = ", ".join(missing[:3]) + (f" and {len(missing) - 3} more" if len(missing) > 3 else "")
        raise ModelMissing(
            f"{path.name} is one of {count} parts of a model, and not all are in its folder: {shown}.",
            f"Get what is missing into {path.absolute().parent}.",
            path=str(path),
            missing=missing,
        )
    return join_parts([header if name == path.name else read_header(path.with_name(name)) for name in names])


def check_complete(*headers: GgufHeader) -> None:
    """Raise ModelBroken when a file is shorter than its tensors need."""
    for header in headers:
        missing = header.needed_bytes - header.file_bytes
        if missing > 0:
            raise ModelBroken(
                f"{header.path.name} is cut short: {missing:,} of {header.needed_bytes:,} bytes are missing.",
                "Download it again, or let the download finish.",
                path=str(header.path),
                missing_bytes=missing,
            )
