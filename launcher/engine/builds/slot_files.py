"""Test whether an engine build writes checkpoints into its slot files, by one save and restore; keep the result.

A model with recurrent state cannot step back within a conversation. If the files lack its checkpoints, the prompt is
read again in full after a restore (llama.cpp's issues 25913, 27813 and 28194).
"""

import json
from collections.abc import Mapping
from contextlib import suppress
from enum import Enum
from pathlib import Path
from typing import TYPE_CHECKING, Any

from launcher.base.errors import Refused
from launcher.base.files import write_atomically
from launcher.base.kept_files import KeptFile
from launcher.base.paths import state_dir
from launcher.engine.builds.build import EngineBuild

if TYPE_CHECKING:
    from launcher.engine.server.client import EngineClient

SAVE_FLAG = "--slot-save-path"
_MOST_BUILDS = 200


class SlotFiles(Enum):
    """Contents of an engine's slot files: complete, without checkpoints, or nothing."""

    COMPLETE = "complete"
    NO_CHECKPOINTS = "no checkpoints"
    NONE = "none"


async def probe_slot_files(client: "EngineClient", request: Mapping[str, Any]) -> SlotFiles:
    """Save the first slot of an engine, clear it and restore it; then send again the `request` that filled it.

    The model must have recurrent state, so that the request's tokens come from the cache only with a checkpoint. Raises
    Unreachable.
    """
    name = {"filename": "slot-0.bin"}
    try:
        await client.request_json("/slots/0?action=save", name)
        await client.request_json("/slots/0?action=erase", name)
        await client.request_json("/slots/0?action=restore", name)
    except Refused:
        return SlotFiles.NONE
    reply = await client.request_json("/v1/chat/completions", {**request, "stream": False, "max_tokens": 1})
    timings = reply.get("timings") if isinstance(reply, dict) else None
    reused = timings.get("cache_n") if isinstance(timings, dict) else None
    return SlotFiles.COMPLETE if reused else SlotFiles.NO_CHECKPOINTS


def save_slot_files(build: EngineBuild, found: SlotFiles) -> None:
    """Save what was found for a build. Write errors are ignored."""
    known, key = _load_known(), _build_key(build)
    known.pop(key, None)
    kept = dict(list(known.items())[1 - _MOST_BUILDS :]) | {key: found.value}
    with suppress(OSError):
        write_atomically(_known_file(), json.dumps(kept, indent=1).encode())


def known_slot_files(build: EngineBuild) -> SlotFiles | None:
    """Return what a build's slot files hold; None if it was never tested."""
    if SAVE_FLAG not in build.flags:
        return SlotFiles.NONE
    with suppress(ValueError, KeyError):
        return SlotFiles(_load_known()[_build_key(build)])
    return None


def _build_key(build: EngineBuild) -> str:
    return " | ".join((str(build.program), build.version))


def _known_file() -> Path:
    return state_dir() / "slot-files.json"


def _load_known() -> dict[str, str]:
    """Return the saved results; empty if the file is missing or damaged."""
    with suppress(OSError):
        return _FILE.load(_known_file())
    return {}


def _parse_known(data: bytes) -> dict[str, str]:
    return {str(key): str(value) for key, value in json.loads(data).items()}


_FILE: KeptFile[dict[str, str]] = KeptFile("The list of what engines' slot files hold", _parse_known, dict)
