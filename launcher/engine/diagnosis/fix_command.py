"""Maps a suggested fix to the command line or link that applies it."""

import sys
from collections.abc import Iterator
from contextlib import suppress
from dataclasses import dataclass, replace
from pathlib import Path
from urllib.parse import urlsplit

from launcher.base.action import Action, ActionKind
from launcher.base.errors import ActionImpossible, LauncherError
from launcher.engine.diagnosis.actions import apply_action, changes_settings
from launcher.engine.server.last_start import PROGRAM, RepeatableStart, quote_command
from launcher.fetch.hub_cache import is_in_cache
from launcher.models.catalogue_load import load_catalogue
from launcher.models.library_index import find_origin
from launcher.models.locate import find_projector, select_model

_BACKENDS = {"cuda": "cuda", "vulkan": "vulkan", "hip": "rocm", "sycl": "sycl"}
"""Values of `engine install --backend` by ggml's backend names."""


@dataclass(frozen=True, slots=True)
class FixCommand:
    """The commands to run one after the other, or a link to open. Neither if no command or link can apply the fix."""

    steps: tuple[tuple[str, ...], ...] = ()
    link: str | None = None

    @property
    def command(self) -> str | None:
        """The commands as one shell line; None if there are none or one of them cannot be quoted."""
        texts = [text for step in self.steps if (text := quote_command(step)) is not None]
        return " && ".join(texts) if texts and len(texts) == len(self.steps) else None


def command_for(action: Action, start: RepeatableStart | None) -> FixCommand:
    """Return the commands or link that apply `action` to a failed or running start; `start` is None if unknown."""
    link = str(action.parameters.get("link", ""))
    if urlsplit(link).scheme == "https":
        return FixCommand(link=link)
    return FixCommand(tuple(_list_steps(action, start)))


def _list_steps(action: Action, start: RepeatableStart | None) -> Iterator[tuple[str, ...]]:
    parameters = action.parameters
    match action.kind:
        case _ if changes_settings(action):
            if start is not None:
                with suppress(ActionImpossible):
                    yield start.with_options(apply_action(action, start.options, context=start.context)).command_words
        case ActionKind.OTHER_PORT | ActionKind.RESTART as kind:
            if start is not None:
                yield (start if kind is ActionKind.RESTART else replace(start, port=None)).command_words
        case ActionKind.LOAD_PROJECTOR:
            if start is not None:
                yield from _list_projector_steps(start)
        case ActionKind.OTHER_ENGINE_BUILD:
            backend = _BACKENDS.get(str(parameters.get("backend")))
            yield (PROGRAM, "engine", "install", *(("--backend", backend) if backend else ()))
        case ActionKind.DOWNLOAD_AGAIN:
            file = Path(str(parameters["file"])) if "file" in parameters else start.options.model if start else None
            yield from _list_download_steps(file)
        case ActionKind.OTHER_MODEL:
            yield (PROGRAM, "models")
        case ActionKind.INSTALL_LIBRARY | ActionKind.CHECK_NETWORK:
            yield (PROGRAM, "doctor")
        case ActionKind.UNSET_VARIABLE if str(parameters.get("variable", "")).isidentifier():
            name = str(parameters["variable"])
            yield ("Remove-Item", f"Env:{name}") if sys.platform == "win32" else ("unset", name)


def _list_projector_steps(start: RepeatableStart) -> Iterator[tuple[str, ...]]:
    """Yield the commands that start a model with its projector, first its download; none if no projector is known."""
    program, verb, model, *rest = start.command_words
    try:
        selection = select_model(start.model, load_catalogue())
    except LauncherError:
        return
    try:
        find_projector(selection)
    except LauncherError:
        if selection.entry.projector is None or selection.entry.repo is None:
            return
        yield program, "pull", model, "--vision"
    yield program, verb, model, "--vision", *rest


def _list_download_steps(file: Path | None) -> Iterator[tuple[str, ...]]:
    """Yield the commands that download a model file again; none if the library does not know its source.

    `pull` never overwrites a file, so an existing one is removed first.
    """
    record = find_origin(file) if file is not None else None
    if record is not None:
        if record.path.exists() and not is_in_cache(record.path):
            yield PROGRAM, "models", "remove", str(record.path)
        yield PROGRAM, "pull", record.label
