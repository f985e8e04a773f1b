"""How an action is carried out: the command that does it, or the address to open."""

import sys
from collections.abc import Iterator
from contextlib import suppress
from dataclasses import dataclass, replace
from pathlib import Path
from urllib.parse import urlsplit

from launcher.base.action import Action, ActionKind
from launcher.base.errors import ActionImpossible
from launcher.engine.action import apply, changes_settings
from launcher.engine.started import PROGRAM, Started, command_text
from launcher.fetch.hub_cache import is_cached
from launcher.models.library_index import origin_of

_BACKENDS = {"cuda": "cuda", "vulkan": "vulkan", "hip": "rocm", "sycl": "sycl"}
"""ggml's names of backends, and those of `engine install`."""


@dataclass(frozen=True, slots=True)
class Way:
    """The commands to run one after the other, or a link to open; neither when only the user can do it."""

    steps: tuple[tuple[str, ...], ...] = ()
    link: str | None = None

    @property
    def command(self) -> str | None:
        """The commands as they can be typed on one line, None when there are none."""
        texts = [text for step in self.steps if (text := command_text(step)) is not None]
        return " && ".join(texts) if texts and len(texts) == len(self.steps) else None


def way(action: Action, start: Started | None) -> Way:
    """Return how `action` is carried out for a start that failed or runs; None when the start is not known."""
    link = str(action.parameters.get("link", ""))
    if urlsplit(link).scheme == "https":
        return Way(link=link)
    steps = tuple(step for step in _steps(action, start) if step)
    return Way(steps)


def _steps(action: Action, start: Started | None) -> Iterator[tuple[str, ...]]:
    given = action.parameters
    match action.kind:
        case _ if changes_settings(action):
            if start is not None:
                with suppress(ActionImpossible):
                    yield start.changed(apply(action, start.options, context=start.context)).words
        case ActionKind.OTHER_PORT | ActionKind.RESTART as kind:
            if start is not None:
                yield (start if kind is ActionKind.RESTART else replace(start, port=None)).words
        case ActionKind.OTHER_ENGINE_BUILD:
            backend = _BACKENDS.get(str(given.get("backend")))
            yield (PROGRAM, "engine", "install", *(("--backend", backend) if backend else ()))
        case ActionKind.DOWNLOAD_AGAIN:
            file = Path(str(given["file"])) if "file" in given else start.options.model if start else None
            yield from _pull(file)
        case ActionKind.OTHER_MODEL:
            yield (PROGRAM, "models")
        case ActionKind.INSTALL_LIBRARY | ActionKind.CHECK_NETWORK:
            yield (PROGRAM, "doctor")
        case ActionKind.UNSET_VARIABLE if str(given.get("variable", "")).isidentifier():
            name = str(given["variable"])
            yield ("Remove-Item", f"Env:{name}") if sys.platform == "win32" else ("unset", name)
        case _:
            pass


def _pull(file: Path | None) -> Iterator[tuple[str, ...]]:
    """Yield what gets a file again, as the library knows it: nothing when nobody knows where it came from.

    `pull` writes over nothing, so what is there has to go first.
    """
    record = origin_of(file) if file is not None else None
    if record is not None:
        if record.path.exists() and not is_cached(record.path):
            yield PROGRAM, "models", "remove", str(record.path)
        yield PROGRAM, "pull", record.words
