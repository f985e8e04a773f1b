"""The server to export: its command in parts, so that each format can replace some of them."""

import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import PurePosixPath, PureWindowsPath
from types import MappingProxyType

from launcher.base.errors import BadOption
from launcher.base.messages import message

LOOPBACK = "127.0.0.1"

_SPELLINGS: Mapping[str, str] = MappingProxyType(
    {
        "-m": "--model",
        "-a": "--alias",
        "-md": "--spec-draft-model",
        "--model-draft": "--spec-draft-model",
        "-mm": "--mmproj",
    }
)
_FILES = frozenset(
    {
        "--spec-draft-model",
        "--mmproj",
        "--chat-template-file",
        "--grammar-file",
        "--json-schema-file",
        "--lora",
        "--control-vector",
    }
)
"""Options whose value is a file that must exist where the server runs (llama-server --help, b11669)."""
_NUMBER = re.compile(r"-\d+(\.\d+)?")

EngineOption = tuple[str, str | None]
"""A flag as llama-server spells it, and its value; None for a switch."""


@dataclass(frozen=True, slots=True)
class ExportRecipe:
    """One server: its program, model, address, and all other options in order.

    `name` is the model's name in the API, `backend` the engine's backend, `environment` the variables of the engine's
    profile. With `api_key` None the user has to supply a key.
    """

    program: tuple[str, ...]
    model: str
    name: str
    port: int
    options: tuple[EngineOption, ...] = ()
    host: str = LOOPBACK
    backend: str = "cpu"
    environment: Mapping[str, str] = field(default_factory=dict)
    api_key: str | None = field(default=None, repr=False)

    @classmethod
    def from_argv(cls, argv: Sequence[str], *, port: int, name: str, backend: str) -> "ExportRecipe":
        """Parse a command line; the words before the first long option are the program.

        Raises BadOption if it names no model, or contains bytes that are not UTF-8.
        """
        for word in argv:
            check_text(word)
        cut = next((place for place, word in enumerate(argv) if word.startswith("--")), len(argv))
        found = list(_parse_options(argv[cut:]))
        told = dict(found)
        model = told.get("--model")
        if not argv[:cut] or model is None:
            raise BadOption(
                message("This server has no model to export."), message("Export a server with a loaded model.")
            )
        ours = {"--model", "--host", "--port", "--alias", "--api-key", "--api-key-file"}
        return cls(
            program=tuple(argv[:cut]),
            model=model,
            name=told.get("--alias") or name,
            port=int(told.get("--port") or port),
            options=tuple(option for option in found if option[0] not in ours),
            host=told.get("--host") or LOOPBACK,
            backend=backend,
        )

    @property
    def files(self) -> tuple[str, ...]:
        """The files that the server reads, its model first."""
        return self.model, *(value for flag, value in self.options if flag in _FILES and value)

    @property
    def url(self) -> str:
        """The base URL of its OpenAI API for clients on this computer."""
        host = LOOPBACK if self.host in ("0.0.0.0", "::") else self.host  # noqa: S104 -- compared, not bound
        return f"http://{host}:{self.port}/v1"

    def build_arguments(self, *further: EngineOption) -> list[str]:
        """Return llama-server's arguments: model, address, name, the other options, then `further`."""
        own: tuple[EngineOption, ...] = (
            ("--model", self.model),
            ("--host", self.host),
            ("--port", str(self.port)),
            ("--alias", self.name),
        )
        return [word for option in (*own, *self.options, *further) for word in option if word is not None]

    def with_paths(self, place: Callable[[str], str], **changes: object) -> "ExportRecipe":
        """Return a copy with the path of each file replaced by `place(path)`."""
        options = tuple((flag, place(value) if flag in _FILES and value else value) for flag, value in self.options)
        return replace(self, model=place(self.model), options=options, **changes)  # type: ignore[arg-type]


def check_text(word: str) -> None:
    """Raise BadOption for a word that is not UTF-8, because no text could contain it."""
    try:
        word.encode()
    except UnicodeEncodeError:
        raise BadOption(
            message(
                "{word} contains bytes that are not UTF-8, so it cannot be written as text.",
                word=word.encode("utf-8", "replace").decode(),
            ),
            message("Rename the file."),
        ) from None


def _parse_options(words: Sequence[str]) -> list[EngineOption]:
    found: list[EngineOption] = []
    place = 0
    while place < len(words):
        flag = words[place]
        flag = _SPELLINGS.get(flag, flag)
        value = words[place + 1] if place + 1 < len(words) else None
        takes = value is not None and (not value.startswith("-") or _NUMBER.fullmatch(value) is not None)
        found.append((flag, value if takes else None))
        place += 2 if takes else 1
    return found


def file_name(path: str) -> str:
    """Return the last component of a Windows or POSIX path."""
    return (PureWindowsPath(path) if _is_windows(path) else PurePosixPath(path)).name


def parent_folder(path: str) -> str:
    """Return the folder of a Windows or POSIX path; "." for a bare name."""
    return str((PureWindowsPath(path) if _is_windows(path) else PurePosixPath(path)).parent)


def _is_windows(path: str) -> bool:
    return bool(re.match(r"[A-Za-z]:[\\/]|\\\\", path))
