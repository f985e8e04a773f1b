"""Why an engine did not start or ended: the first cause in its log, as a sentence with a next step.

The texts are llama.cpp's own (b10605 to b11669); the order is that of causes, not of lines.
"""

import re
from collections.abc import Iterable
from typing import NamedTuple

from launcher.base.errors import (
    CpuUnsupported,
    DraftsInert,
    EngineFailed,
    EngineUnsuitable,
    LauncherError,
    LibraryMissing,
    ModelBroken,
    ModelHasNoHead,
    PortBusy,
)
from launcher.engine.process import Exit


class _Signature(NamedTuple):
    pattern: re.Pattern[str]
    error: type[LauncherError]
    title: str
    hint: str


def _signature(pattern: str, error: type[LauncherError], title: str, hint: str) -> _Signature:
    return _Signature(re.compile(pattern), error, title, hint)


_SIGNATURES = (
    _signature(
        r"error: invalid argument: (\S+)",
        EngineUnsuitable,
        "The engine does not know the flag {0}.",
        "Use another build.",
    ),
    _signature(
        r"error while handling argument \"([^\"]+)\": (.*)",
        EngineUnsuitable,
        "The engine refused the value of {0}: {1}.",
        "Change that setting.",
    ),
    _signature(
        r"couldn't bind HTTP server socket, hostname: (\S+), port: (\d+)",
        PortBusy,
        "Port {1} is in use by another program.",
        "Choose another one with --port, or leave --port out.",
    ),
    _signature(
        r"unknown model architecture: '([^']+)'",
        EngineUnsuitable,
        "This engine does not know the architecture {0}.",
        "Use a newer llama.cpp build.",
    ),
    _signature(
        r"(?:data is not within the file bounds|failed to read key-value pairs|invalid magic characters)",
        ModelBroken,
        "The model file is damaged or incomplete.",
        "Download it again.",
    ),
    _signature(
        r"cudaMalloc failed: out of memory|unable to allocate \S+ buffer|ErrorOutOfDeviceMemory"
        r"|failed to allocate (?:buffer for (?:kv|rs) cache|compute)",
        EngineFailed,
        "There is not enough memory for these settings.",
        "Lower --ctx, or set --draft 0, or close other programs that use the memory.",
    ),
    _signature(
        r"context type MTP requested but model doesn't contain MTP layers|missing tensor '(blk\.\d+\.nextn[^']*)'",
        ModelHasNoHead,
        "The model file has no MTP head.",
        "Start it with --draft 0, or get a file with the head (its repository is often called ...-MTP-GGUF).",
    ),
    _signature(
        r"NextN graph not implemented yet|failed to create MTP context",
        DraftsInert,
        "The engine cannot do MTP with this model.",
        "Start it with --draft 0, or use a newer llama.cpp build.",
    ),
    _signature(
        r"missing tensor '([^']+)'|wrong number of tensors|has wrong shape",
        ModelBroken,
        "The model file does not hold what this engine expects.",
        "Get another conversion of the model, or use a newer llama.cpp build.",
    ),
    _signature(
        r"error while loading shared libraries: (\S+?):",
        LibraryMissing,
        "The engine needs {0}, which is not installed.",
        "Install it, or unpack the engine again.",
    ),
    _signature(
        r"the built-in engine cannot be loaded: (.*)",
        LibraryMissing,
        "The built-in engine cannot be loaded: {0}.",
        "`mtp-launcher doctor` says what is missing.",
    ),
    _signature(
        r"version .(GLIBC(?:XX)?_[\d.]+). not found",
        EngineUnsuitable,
        "The engine was built for a newer system ({0}).",
        "Use a build for this one, or the built-in engine.",
    ),
)

_SIGILL = {-4, 0xC000001D - 2**32, 0xC000001D}


def explain(ended: Exit, lines: Iterable[str], *, while_doing: str, hint: str = "See its log.") -> LauncherError:
    """Return the first cause that the log names, else what can be said of the exit.

    `while_doing` completes "The engine ... while ", such as "loading the model"; `hint` is what to do when the
    log names no cause.
    """
    lines = list(lines)
    for signature in _SIGNATURES:
        for line in lines:
            if found := signature.pattern.search(line):
                groups = [group or "" for group in found.groups()]
                return signature.error(
                    signature.title.format(*groups), signature.hint, line=line.strip(), exit_code=ended.code
                )
    if ended.code in _SIGILL:
        return CpuUnsupported(
            "This processor lacks an instruction set that the engine was built for.",
            "Use a build for this processor.",
            exit_code=ended.code,
        )
    if ended.code == -9:
        return EngineFailed(
            f"The engine was killed from outside while {while_doing}.",
            "Start it again. If memory had run short, use a smaller model or a lower --ctx, or close other programs.",
            exit_code=ended.code,
        )
    last = next((line.strip() for line in reversed(lines) if " E " in line or "error" in line.lower()), None)
    last = last or next((line.strip() for line in reversed(lines) if line.strip()), None)
    said = f" The last it said: {last}" if last else ""
    return EngineFailed(f"The engine {ended} while {while_doing}.{said}", hint, exit_code=ended.code)
