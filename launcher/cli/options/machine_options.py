"""Options for the machine and for server settings, shared by `plan`, `estimate`, `export`, `serve` and others."""

from __future__ import annotations

import argparse
from collections.abc import Callable, Mapping
from pathlib import Path

from launcher.cli.quantities import (
    parse_card_name,
    parse_gib,
    parse_gpu_memory,
    parse_int,
    parse_mib,
    parse_number,
    parse_rpc_workers,
    parse_tokens,
)
from launcher.models.server_settings import ROWS, ServerSetting

BACKENDS = ("cuda", "vulkan", "rocm", "metal", "cpu")
INTENTS = ("balanced", "agents", "long-context", "best-quality", "as-published")
"""The names of Backend and Intent. They are not imported, because that would slow down --help; a test compares them."""
_PARSERS: Mapping[str, Callable[[str], object]] = {
    "tokens": parse_tokens,
    "count": parse_int,
    "mib": parse_mib,
    "share": parse_number,
    "choice": str.lower,
    "shares": str,
}
"""Parsers for the value of a server setting, by its kind."""


def add_machine_options(parser: argparse.ArgumentParser) -> None:
    """Declare the options that describe another machine."""
    group = parser.add_argument_group("machine", "This machine as it is now, unless another one is described.")
    described = group.add_mutually_exclusive_group()
    described.add_argument(
        "--gpu",
        type=parse_card_name,
        metavar="NAME",
        help='describe a GPU by a part of its name: "4090", "5060 Ti 16GB"',
    )
    described.add_argument(
        "--gpu-memory",
        type=parse_gpu_memory,
        metavar="GIB",
        help="describe a typical GPU of this size: 16, 16GB; or several: 24+12",
    )
    described.add_argument(
        "--unified-memory", type=parse_gib, metavar="GIB", help="describe a GPU that shares the host's memory: 128"
    )
    group.add_argument(
        "--free-memory", type=parse_mib, metavar="MIB", help="free GPU memory (default: as measured, or as estimated)"
    )
    group.add_argument("--headless", action="store_true", help="no display uses the GPU: keep 512 MiB free, not 1,024")
    group.add_argument("--host-memory", type=parse_gib, metavar="GIB", help="size of the host's memory")
    group.add_argument(
        "--host-bandwidth",
        type=parse_number,
        metavar="GB/S",
        help="bandwidth of the host's memory, channels x rate x 8: 89.6 for two channels of DDR5-5600",
    )
    group.add_argument("--backend", choices=BACKENDS, help="the engine's backend (default: this GPU's, or cuda)")
    group.add_argument(
        "--rpc", type=parse_rpc_workers, default=(), metavar="HOST:PORT,...", help="llama.cpp's RPC workers to use"
    )
    group.add_argument("--wake", action="store_true", help="wake a sleeping GPU to read it")


def add_setting_options(parser: argparse.ArgumentParser) -> None:
    """Declare an option for each server setting."""
    group = parser.add_argument_group("server settings", "Values that you give are kept, the others are recommended.")
    for row in ROWS.values():
        add_setting_option(group, row)
    group.add_argument("--no-mtp", action="store_true", help="MTP off")


def add_engine_option(parser: argparse.ArgumentParser) -> None:
    """Declare the option for the engine to serve with."""
    parser.add_argument(
        "--engine",
        type=Path,
        metavar="PATH",
        help="a llama-server, an installed engine, or built-in (default: the one in use)",
    )


def add_draft_option(parser: argparse.ArgumentParser) -> None:
    """Declare the option for a file that drafts."""
    parser.add_argument(
        "--draft-model", type=Path, metavar="FILE", help="what drafts: a small model, or EAGLE-3, DFlash, DSpark, ..."
    )


def add_setting_option(parser: argparse._ActionsContainer, row: ServerSetting, *, default: str = "") -> None:
    """Declare the option of a server setting; `default` is shown as its default value."""
    help_text = f"{row.help} (default: {default})" if default else row.help
    if row.kind == "switch":
        parser.add_argument(row.option, action=argparse.BooleanOptionalAction, help=help_text)
    else:
        parser.add_argument(row.option, type=_PARSERS[row.kind], metavar=row.metavar, help=help_text)
