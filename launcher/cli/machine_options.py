"""The options that `plan` and `estimate` share: which machine, which setting."""

from __future__ import annotations

import argparse
from pathlib import Path
from typing import TYPE_CHECKING

from launcher.cli.quantities import gib, mib, tokens, whole, workers

if TYPE_CHECKING:
    from launcher.engine.launch import ServeOptions
    from launcher.models.plan import Wish
    from launcher.planner import MachineWish

BACKENDS = ("cuda", "vulkan", "rocm", "metal", "cpu")
INTENTS = ("balanced", "long-context", "best-quality", "as-published")
"""The names of Backend and Intent, held equal by a test: importing those would slow every --help."""


def add_machine_options(parser: argparse.ArgumentParser) -> None:
    """Declare what describes a machine in place of this one."""
    group = parser.add_argument_group("the machine", "This one as it is now, unless it is described.")
    group.add_argument("--gpu-memory", type=gib, metavar="GIB", help="describe a GPU by its size: 16, 16GB")
    group.add_argument("--free-memory", type=mib, metavar="MIB", help="free GPU memory (default: read, or usable part)")
    group.add_argument("--headless", action="store_true", help="no display uses the GPU: keep 512 MiB free, not 1,024")
    group.add_argument("--host-memory", type=gib, metavar="GIB", help="size of the host's memory")
    group.add_argument("--backend", choices=BACKENDS, help="the engine's backend (default: this GPU's, or cuda)")
    group.add_argument(
        "--rpc", type=workers, default=(), metavar="HOST:PORT,...", help="llama.cpp's RPC workers to use"
    )
    group.add_argument("--wake", action="store_true", help="wake a sleeping GPU to ask it")


def add_setting_options(parser: argparse.ArgumentParser) -> None:
    """Declare what fixes a part of the setting."""
    group = parser.add_argument_group("the setting", "What is given is kept; the rest is chosen.")
    group.add_argument("--ctx", type=tokens, metavar="N", help="context in tokens, of all slots together: 131072, 128K")
    group.add_argument("--kv", type=str.lower, metavar="TYPE", help="type of the KV cache: f16, q8_0, q4_0, ...")
    group.add_argument("--draft", type=whole, metavar="N", help="draft length, 0 is MTP off")
    group.add_argument("--no-mtp", action="store_true", help="MTP off")
    group.add_argument("--ubatch", type=tokens, metavar="N", help="tokens of a prompt computed at once")
    group.add_argument("--n-cpu-moe", type=whole, metavar="N", help="keep the experts of N layers on the host")
    group.add_argument("--slots", type=whole, metavar="N", help="requests served at once")


def machine_wish(options: argparse.Namespace) -> MachineWish:
    """Return which machine the options mean."""
    from launcher.planner import MachineWish

    return MachineWish(
        gpu_memory_gib=options.gpu_memory,
        free_mib=options.free_memory,
        headless=options.headless,
        host_memory_gib=options.host_memory,
        backend=options.backend,
        wake=options.wake,
        rpc=options.rpc,
    )


def wish_of(options: argparse.Namespace) -> Wish:
    """Return what the options ask for. Raises BadOption when they contradict one another."""
    from launcher.base.errors import BadOption
    from launcher.models.plan import Wish

    if options.no_mtp and options.draft:
        raise BadOption("--no-mtp and --draft contradict one another.", "Give one of them.")
    return Wish(
        model=getattr(options, "model", None),
        intent=getattr(options, "intent", "balanced"),
        quant=getattr(options, "quant", None),
        context=options.ctx,
        kv=options.kv,
        draft=0 if options.no_mtp else options.draft,
        ubatch=options.ubatch,
        n_cpu_moe=options.n_cpu_moe,
        slots=options.slots,
        vision=getattr(options, "vision", False),
    )


def to_serve(options: argparse.Namespace, model: Path) -> ServeOptions:
    """Return how the parsed options of `serve` or `export` want a model file to be served."""
    from launcher.engine.build import BUILT_IN
    from launcher.engine.launch import DEFAULT_DRAFT, ServeOptions

    built_in = str(options.engine) == BUILT_IN
    return ServeOptions(
        model=model,
        engine=None if built_in else options.engine,
        built_in=built_in,
        context=options.ctx,
        slots=1 if options.slots is None else options.slots,
        threads=options.threads,
        draft=DEFAULT_DRAFT,
        kv=options.kv,
        ubatch=options.ubatch,
        n_cpu_moe=options.n_cpu_moe,
        extra=tuple(options.extra),
        rpc=options.rpc,
    )
