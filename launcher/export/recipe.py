"""A server to export: its command line in parts, because each export format changes some of them."""

import re
from collections import deque
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from itertools import takewhile
from pathlib import PurePosixPath, PureWindowsPath
from types import MappingProxyType

from launcher.agents.configuration import AgentServer
from launcher.base.errors import BadOption
from launcher.base.messages import message

LOOPBACK = "127.0.0.1"

_LONG_FLAGS: Mapping[str, str] = MappingProxyType(
    {
        "-m": "--model",
        "-a": "--alias",
        "-md": "--spec-draft-model",
        "--model-draft": "--spec-draft-model",
        "-mm": "--mmproj",
        "-c": "--ctx-size",
        "-np": "--parallel",
        "-kvu": "--kv-unified",
    }
)
"""Other spellings of flags, with the long flag that replaces each."""
_FILE_OPTIONS = frozenset(
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
"""Options whose value is a file that llama-server reads (llama-server --help, b11669)."""
_NEGATIVE_NUMBER = re.compile(r"-\d+(\.\d+)?")

EngineOption = tuple[str, str | None]
"""A flag as llama-server spells it, and its value; None for a switch."""


@dataclass(frozen=True, slots=True)
class ExportRecipe:
    """One server: its program, model, address, and all other options in order.

    `name` is the model's name in the API, `backend` the engine's backend, `environment` the variables of the engine's
    profile. With `api_key` None the exported text reads the key from a variable or a file.
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
        program = tuple(takewhile(lambda word: not word.startswith("--"), argv))
        options = _parse_options(argv[len(program) :])
        values = dict(options)
        model = values.get("--model")
        if not program or model is None:
            raise BadOption(
                message("This server has no model to export."), message("Export a server with a loaded model.")
            )
        flags_with_fields = {"--model", "--host", "--port", "--alias", "--api-key", "--api-key-file"}
        return cls(
            program=program,
            model=model,
            name=values.get("--alias") or name,
            port=int(values.get("--port") or port),
            options=tuple(option for option in options if option[0] not in flags_with_fields),
            host=values.get("--host") or LOOPBACK,
            backend=backend,
        )

    @property
    def files(self) -> tuple[str, ...]:
        """The files that the server reads, its model first."""
        return self.model, *(value for flag, value in self.options if flag in _FILE_OPTIONS and value)

    @property
    def embeds(self) -> bool:
        """Whether the server only turns texts into vectors."""
        return any(flag in ("--embeddings", "--embedding") for flag, _ in self.options)

    @property
    def context(self) -> int | None:
        """The tokens of context that one request has; None if the engine chooses it when it starts."""
        values = dict(self.options)
        context, slots = (_positive_int(values.get(flag)) for flag in ("--ctx-size", "--parallel"))
        return context // slots if context and slots and "--kv-unified" not in values else context

    @property
    def ranks(self) -> bool:
        """Whether the server only ranks texts."""
        return any(flag in ("--reranking", "--rerank") for flag, _ in self.options)

    @property
    def generates_text(self) -> bool:
        """Whether the server writes text."""
        return not self.embeds and not self.ranks

    @property
    def url(self) -> str:
        """The base URL of its OpenAI API for clients on this computer."""
        host = LOOPBACK if self.host in ("0.0.0.0", "::") else self.host  # noqa: S104 -- compared, not bound
        return f"http://{host}:{self.port}/v1"

    def build_arguments(self, *extra: EngineOption) -> list[str]:
        """Return llama-server's arguments: model, address, name, the other options, then `extra`."""
        own: tuple[EngineOption, ...] = (
            ("--model", self.model),
            ("--host", self.host),
            ("--port", str(self.port)),
            ("--alias", self.name),
        )
        return [word for option in (*own, *self.options, *extra) for word in option if word is not None]

    def with_paths(self, convert: Callable[[str], str], **changes: object) -> "ExportRecipe":
        """Return a copy with the path of each file replaced by `convert(path)`, and other fields by `changes`."""
        options = tuple(
            (flag, convert(value) if flag in _FILE_OPTIONS and value else value) for flag, value in self.options
        )
        return replace(self, model=convert(self.model), options=options, **changes)  # type: ignore[arg-type]


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
    """Parse arguments. The word after a flag is its value, unless it looks like a flag itself."""
    options: list[EngineOption] = []
    rest = deque(words)
    while rest:
        flag = rest.popleft()
        has_value = bool(rest) and (not rest[0].startswith("-") or _NEGATIVE_NUMBER.fullmatch(rest[0]) is not None)
        options.append((_LONG_FLAGS.get(flag, flag), rest.popleft() if has_value else None))
    return options


def _positive_int(text: str | None) -> int | None:
    return int(text) if text is not None and text.isdecimal() and int(text) > 0 else None


def file_name(path: str) -> str:
    """Return the last component of a Windows or POSIX path."""
    return (PureWindowsPath(path) if _is_windows(path) else PurePosixPath(path)).name


def parent_folder(path: str) -> str:
    """Return the folder of a Windows or POSIX path; "." for a bare name."""
    return str((PureWindowsPath(path) if _is_windows(path) else PurePosixPath(path)).parent)


def _is_windows(path: str) -> bool:
    return bool(re.match(r"[A-Za-z]:[\\/]|\\\\", path))


def describe_agent_server(recipe: ExportRecipe) -> AgentServer:
    """Return the server of a recipe as coding agents see it."""
    return AgentServer(recipe.url.removesuffix("/v1"), recipe.api_key or "", recipe.name, recipe.context)
