"""Options of a server start: model, engine and server settings, with their checks."""

import os
from collections.abc import Callable, Sequence
from dataclasses import KW_ONLY, dataclass, fields, replace
from itertools import pairwise
from pathlib import Path
from typing import Any, Self

from launcher.base.errors import BadOption
from launcher.base.messages import FaceName, command_name, mark, message
from launcher.models.drafters import file_kinds_of
from launcher.models.limits import check_rpc
from launcher.models.server_settings import ROWS, ServerSettings, check_settings

FALLBACK_CONTEXT = 32_768
"""Context in tokens if neither the user nor a memory estimate gives one; less if the model was trained for less."""
DEFAULT_DRAFT = 2
"""The draft length that was fastest most often in published measurements of Qwen's 35B MoE and dense 27B models."""
_RESERVED_FLAGS = {
    "--port": message(
        "[Put {flag} before the --.][{instead}]",
        flag=FaceName("--port"),
        instead=FaceName(None, mark("The launcher chooses the port.")),
    ),
    "--host": message(
        "The server listens on 127.0.0.1 only; {place} shares it with the network.",
        place=FaceName("`serve --lan`", mark("Settings")),
    ),
    "--model": message(
        "[Put {flag} before the --.][{instead}]",
        flag=FaceName("--model"),
        instead=FaceName(None, mark("Choose the model on Models.")),
    ),
    "--api-key": message(
        "Each port keeps its API key; {command} shows it.", command=command_name("status --json", mark("Settings"))
    ),
    "--ssl-key-file": message("The server has no TLS. Use a reverse proxy for TLS."),
    "--api-prefix": message("The API is at /v1."),
}
"""Flags that the user's extra arguments must not contain, because they change the server's address or the access to it,
with hints on what to use instead."""
_FLAG_ALIASES = {
    "-m": "--model",
    "-hf": "--model",
    "-hfr": "--model",
    "--hf-repo": "--model",
    "-mu": "--model",
    "--model-url": "--model",
    "--api-key-file": "--api-key",
    "--ssl-cert-file": "--ssl-key-file",
}

_READ_FILES = frozenset(
    {
        *("--chat-template-file", "--grammar-file", "--json-schema-file", "-jf", "--mmproj", "-mm", "--path"),
        *("--spec-draft-model", "--model-draft", "-md", "--lookup-cache-static", "-lcs", "--tts-speaker-file"),
        *("--ui-config-file", "--webui-config-file", "--mcp-servers-config", "--media-path", "--video-ffmpeg-dir"),
    }
)
"""Flags of llama-server (b11549) whose value is a file or folder that it reads."""
_READ_LISTS = frozenset({"--lora", "--lora-scaled", "--control-vector", "--control-vector-scaled"})
"""Those whose value is a list of files with commas; "scaled": with a factor after each, as FILE:SCALE."""
_WRITTEN_FILES = frozenset({"--log-file", "--log-prompts-dir", "--lookup-cache-dynamic", "-lcd"})
"""Those whose value is a file or folder that it may have to make."""


def fallback_context(trained: int | None) -> int:
    """Return FALLBACK_CONTEXT, or the model's trained context in tokens if that is known and less."""
    return min(FALLBACK_CONTEXT, trained or FALLBACK_CONTEXT)


@dataclass(frozen=True, slots=True)
class DraftFile:
    """A file with which a model may draft, and its kind (models/file_kinds.py)."""

    kind: str
    path: Path


@dataclass(frozen=True, slots=True)
class ServeOptions(ServerSettings):
    """Options of a server start: model, engine and server settings.

    `engine` None, like a server setting that is None, leaves the choice to the program; `built_in` requests the
    built-in engine. `draft` is the draft length in tokens, `draft_file` the file of the model's own drafter,
    `other_drafts` are those of others that can be chosen. `alias` is the model's name in the API. `mmproj` is the
    vision projector, `chat_template_file` replaces the model's chat template. `rpc` are llama.cpp RPC workers as
    HOST:PORT whose devices are used in addition. `no_gpu` makes a GPU build compute on the CPU. `embeddings`: the
    model turns texts into vectors, and the server answers /v1/embeddings. `reranking`: it ranks texts as well, and
    the server answers /v1/rerank. A start takes both from the model's header. `extra` are the arguments that the
    user wrote after `--`; they are passed at the end of the command line.
    """

    model: Path
    engine: Path | None = None
    built_in: bool = False
    _: KW_ONLY
    draft: int = DEFAULT_DRAFT
    slots: int = 1
    alias: str | None = None
    draft_file: Path | None = None
    other_drafts: tuple[DraftFile, ...] = ()
    mmproj: Path | None = None
    chat_template_file: Path | None = None
    rpc: tuple[str, ...] = ()
    no_gpu: bool = False
    embeddings: bool = False
    reranking: bool = False
    extra: tuple[str, ...] = ()

    @property
    def texts_path(self) -> str:
        """The API's path for texts if the model generates none itself; "" if it does."""
        if self.reranking:
            return "/v1/rerank"
        return "/v1/embeddings" if self.embeddings else ""

    def with_absolute_paths(self) -> Self:
        """Return the same options for another process, which may have another current folder."""
        values = {each.name: getattr(self, each.name) for each in fields(self)}
        paths: dict[str, Any] = {name: value.absolute() for name, value in values.items() if isinstance(value, Path)}
        others = tuple(replace(each, path=each.path.absolute()) for each in self.other_drafts)
        return replace(self, **paths, other_drafts=others)

    @property
    def draft_files(self) -> tuple[str, ...]:
        """Kinds of the files beside the model's with which it may draft."""
        return tuple(each.kind for each in self.all_drafts)

    @property
    def all_drafts(self) -> tuple[DraftFile, ...]:
        """The files with which it may draft, that of the model's own drafter first."""
        own = file_kinds_of(self.spec_type)[:1] if self.draft_file else ()
        return (*(DraftFile(kind, self.draft_file) for kind in own if self.draft_file), *self.other_drafts)

    @property
    def used_draft_file(self) -> Path | None:
        """The file of the drafter in use; None if it needs none."""
        return next((each.path for each in self.all_drafts if each.kind in self.drafter.files), None)


def map_files(extra: Sequence[str], change: Callable[[str, str], str]) -> tuple[str, ...]:
    """Return extra arguments with each file or folder in them replaced by `change(flag, path)`."""
    words = list(extra)
    for at, (flag, value) in enumerate(pairwise(extra), start=1):
        flag = flag.replace("_", "-") if flag.startswith("--") else flag  # llama.cpp accepts --grammar_file, too
        if flag in _READ_FILES | _WRITTEN_FILES:
            words[at] = change(flag, value)
        elif flag in _READ_LISTS:
            parts = [part.rpartition(":" if flag.endswith("-scaled") else "\0") for part in value.split(",")]
            words[at] = ",".join(
                f"{change(flag, path)}{colon}{rest}" if colon else change(flag, rest) for path, colon, rest in parts
            )
    return tuple(words)


def name_files_absolutely(extra: Sequence[str], folder: Path) -> tuple[str, ...]:
    """Return extra arguments in which relative files, which lie in `folder`, have their absolute names.

    The engine runs in another folder than the shell in which a user wrote them.
    """
    return map_files(extra, lambda _, path: str(folder / path))


def check_files(extra: Sequence[str], folder: Path) -> None:
    """Check that the files that extra arguments name exist; relative ones lie in `folder`. Raises BadOption."""

    def check(flag: str, path: str) -> str:
        if flag not in _WRITTEN_FILES and not (folder / path).exists():
            raise BadOption(
                message("{path}, which {flag} names, does not exist.", path=folder / path, flag=flag),
                message("Check the path after {flag}.", flag=flag),
                option=flag,
            )
        return path

    map_files(extra, check)


def check_options(options: ServeOptions) -> None:
    """Check the settings that need no file. Raises BadOption for a value that no engine accepts."""
    check_settings(options)
    # More threads than CPU cores are slower: each step waits for threads that are not scheduled.
    threads = ROWS["threads"]
    replace(threads, most=os.cpu_count() or threads.most).check_value(options.threads)
    check_rpc(options.rpc)
    for word in options.extra:
        flag = word.split("=")[0]
        flag = flag.replace("_", "-") if flag.startswith("--") else flag  # llama.cpp accepts --api_key, too
        if hint := _RESERVED_FLAGS.get(_FLAG_ALIASES.get(flag, flag)):
            raise BadOption(
                message("{flag} cannot be passed after -- because the launcher sets it.", flag=flag), hint, option=flag
            )
