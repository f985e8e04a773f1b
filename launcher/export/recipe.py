"""What is exported: one server's command in parts, so that each kind may put its own in their place."""

import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import PurePosixPath, PureWindowsPath
from types import MappingProxyType

from launcher.base.errors import BadOption

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
"""Options whose value is a file, which must be where the server runs (llama-server --help, b11669)."""
_NUMBER = re.compile(r"-\d+(\.\d+)?")

Option = tuple[str, str | None]
"""A flag as llama-server spells it, and its value, None for a switch."""


@dataclass(frozen=True, slots=True)
class Recipe:
    """One server: what runs it, its model, where it listens, and all its other options in their order.

    `name` is what it is called in the API, `backend` what computes it, `environment` what the engine's profile wants.
    `api_key` None stands for a key that the user puts in its place.
    """

    program: tuple[str, ...]
    model: str
    name: str
    port: int
    options: tuple[Option, ...] = ()
    host: str = LOOPBACK
    backend: str = "cpu"
    environment: Mapping[str, str] = field(default_factory=dict)
    api_key: str | None = field(default=None, repr=False)

    @classmethod
    def of(cls, argv: Sequence[str], *, port: int, name: str, backend: str) -> "Recipe":
        """Take a command apart: what precedes the first long option is the program.

        Raises BadOption when it names no model, or holds bytes that no text can carry.
        """
        for word in argv:
            check_text(word)
        cut = next((place for place, word in enumerate(argv) if word.startswith("--")), len(argv))
        found = list(_options(argv[cut:]))
        told = dict(found)
        model = told.get("--model")
        if not argv[:cut] or model is None:
            raise BadOption("This command names no model.", "Export a server that serves one.")
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
        """The files that it reads, its model first."""
        return self.model, *(value for flag, value in self.options if flag in _FILES and value)

    @property
    def url(self) -> str:
        """Where clients on this computer find it, with the path of the OpenAI interface."""
        host = LOOPBACK if self.host in ("0.0.0.0", "::") else self.host  # noqa: S104 -- compared, not bound
        return f"http://{host}:{self.port}/v1"

    def arguments(self, *further: Option) -> list[str]:
        """Return llama-server's arguments: the model, the address, the name, the others, then `further`."""
        own: tuple[Option, ...] = (
            ("--model", self.model),
            ("--host", self.host),
            ("--port", str(self.port)),
            ("--alias", self.name),
        )
        return [word for option in (*own, *self.options, *further) for word in option if word is not None]

    def moved(self, place: Callable[[str], str], **changes: object) -> "Recipe":
        """Return it with each of its files where `place` says."""
        options = tuple((flag, place(value) if flag in _FILES and value else value) for flag, value in self.options)
        return replace(self, model=place(self.model), options=options, **changes)  # type: ignore[arg-type]


def check_text(word: str) -> None:
    """Raise BadOption for a name that is no UTF-8: no text could carry it."""
    try:
        word.encode()
    except UnicodeEncodeError:
        raise BadOption(
            f"{word.encode('utf-8', 'replace').decode()} has bytes that are no UTF-8, so no text can name it.",
            "Rename the file.",
        ) from None


def _options(words: Sequence[str]) -> list[Option]:
    found: list[Option] = []
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
    """Return a path's last part, of a path of any system."""
    return (PureWindowsPath(path) if _is_windows(path) else PurePosixPath(path)).name


def folder(path: str) -> str:
    """Return the folder of a path of any system; "." for a bare name."""
    return str((PureWindowsPath(path) if _is_windows(path) else PurePosixPath(path)).parent)


def _is_windows(path: str) -> bool:
    return bool(re.match(r"[A-Za-z]:[\\/]|\\\\", path))
