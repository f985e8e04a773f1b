"""`mtp-launcher engine`: the engines of this computer, and official builds of llama.cpp."""

from __future__ import annotations

import argparse
import asyncio
import sys
import time
from pathlib import Path
from typing import TYPE_CHECKING, Any

from launcher.cli import engine_lists
from launcher.cli.bar import Bar, size
from launcher.cli.layout import filled
from launcher.cli.output import print_json, rounded

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable

    from launcher.engine.install import InstallProgress
    from launcher.engine.installed import Store
    from launcher.engine.self_test import Passed

_EVENT_S = 0.5
_ACTIONS = {
    "list": "all engines of this computer: installed, yours, on PATH, in the usual places, built-in",
    "available": "the newest official builds, and what of them suits this computer",
    "install": "download an official build, verify it, test it, and put it in use",
    "use": "put an engine in use: a name, auto (the usual choice) or built-in",
    "pin": "keep an engine in use whatever is installed later (the one in use by default)",
    "unpin": "end the pin",
    "rollback": "put the engine in use that was before",
    "remove": "remove an installed engine, or forget one of yours",
    "add": "take in an engine of your own by its path, such as a fork's",
    "flags": "list the flags that an engine has, as its own --help tells them",
    "test": "test an engine: version, GPU, MTP on the demo model",
}


def configure(parser: argparse.ArgumentParser) -> None:
    """Declare the verb's options."""
    actions = parser.add_subparsers(dest="action", metavar="ACTION", description="Without an action, the list.")
    for name, summary in _ACTIONS.items():
        action = actions.add_parser(name, help=summary, description=f"{summary[0].upper()}{summary[1:]}.")
        action.add_argument("--json", action="store_true", default=argparse.SUPPRESS, help="print JSON for programs")
        if name == "install":
            action.add_argument(
                "tag",
                nargs="?",
                metavar="TAG",
                help="b11434, v0.7.0, stable or nightly (default: stable, but nothing older than what is in use)",
            )
            action.add_argument("--anyway", action="store_true", help="also a build that is known to be bad")
        if name in ("install", "available"):
            action.add_argument(
                "--backend",
                metavar="B",
                help="cuda, cuda-12, vulkan, rocm, sycl, openvino or cpu (default: what suits, else the next)",
            )
        if name in ("use", "remove"):
            action.add_argument("name", metavar="NAME", help="as `engine list` shows it, or its tag")
        if name in ("pin", "test"):
            action.add_argument("name", nargs="?", metavar="NAME", help="as `engine list` shows it (default: in use)")
        if name == "flags":
            action.add_argument("search", nargs="*", metavar="WORD", help="only those that have these words")
            action.add_argument("--engine", type=Path, metavar="PATH", help="a llama-server, or an installed engine")
        if name == "add":
            action.add_argument("path", type=Path, metavar="PATH", help="a llama-server, or the folder that has it")
            action.add_argument("--name", metavar="N", help="what to call it (default: its folder's name)")


async def run(options: argparse.Namespace) -> int:
    """Do what the action says. Exit code 1 when it could not be done or a test failed, 130 when interrupted."""
    actions: dict[str, Callable[[argparse.Namespace], Awaitable[int]]] = {
        "list": engine_lists.list_engines,
        "flags": engine_lists.list_flags,
        "available": engine_lists.list_available,
        "install": _install,
        "add": _add,
        "remove": _remove,
        "test": _test,
    }
    return await actions.get(options.action or "list", _change)(options)


async def _install(options: argparse.Namespace) -> int:
    from launcher.engine.install import install
    from launcher.engine.installed import read_store
    from launcher.settings import transfer

    show = _JsonLines() if options.json else _Lines()
    try:
        engine = await install(
            options.tag, options.backend, anyway=options.anyway, on_progress=show, settings=transfer()
        )
    except asyncio.CancelledError:
        show.close()
        show.interrupted()
        raise
    finally:
        show.close()
    current = read_store().current
    manifest = engine.manifest
    if options.json:
        print_json({"event": "done", "current": current == engine.name, **engine_lists.engine_json(engine)})
        return 0
    if manifest is not None and current == engine.name:
        print(f"{engine.name} is in use now: `mtp-launcher serve` takes it. {_drafts_words(manifest)}".rstrip())
    elif current != engine.name:
        print(f"{engine.name} is installed; {engine_lists.short(current)} stays in use.")
    return 0


def _drafts_words(manifest: Any) -> str:  # noqa: ANN401 -- a Manifest, whose module is not imported for this
    if not manifest.drafted:
        return ""
    return f"Its test: {manifest.accepted} of {manifest.drafted} drafted tokens accepted."


async def _change(options: argparse.Namespace) -> int:
    """Use, pin, unpin or roll back."""
    from launcher.engine import installed

    before = installed.read_store()
    match options.action:
        case "use":
            store = installed.use(options.name)
        case "pin":
            store = installed.pin(options.name)
        case "unpin":
            store = installed.unpin()
        case _:
            store = installed.rollback()
    if options.json:
        print_json({"current": store.current, "previous": store.previous, "pinned": store.pinned})
        return 0
    print(_in_use_line(store))
    if before.pinned and not store.pinned and options.action != "unpin":
        print(f"{before.current} was pinned and is not any more; `mtp-launcher engine pin` pins what is in use.")
    if fault := engine_lists.fault_in(store):
        print(f"It is known to be bad: {fault.reason} ({fault.source}).")
    return 0


def _in_use_line(store: Store) -> str:
    name = engine_lists.IN_USE_WORDS.get(store.current, store.current)
    pinned = ", pinned" if store.pinned else ""
    before = f" Before: {engine_lists.short(store.previous)}." if store.previous else ""
    return f"In use: {name}{pinned}.{before}"


async def _add(options: argparse.Namespace) -> int:
    from launcher.base.paths import expanded
    from launcher.engine import installed
    from launcher.engine.build import probe

    program = await asyncio.to_thread(lambda: installed.program_in(expanded(options.path).absolute()))
    await probe(program)
    engine = installed.add(program, options.name)
    if options.json:
        print_json(engine_lists.engine_json(engine))
    else:
        print(f"{engine.name}: {engine.program}\n`mtp-launcher engine use {engine.name}` puts it in use.")
    return 0


async def _remove(options: argparse.Namespace) -> int:
    from launcher.engine import installed

    engine, freed = await asyncio.to_thread(installed.remove, options.name)
    if options.json:
        print_json({"removed": engine.name, "freed_bytes": freed})
    elif engine.manifest is None:
        print(f"{engine.name} is forgotten. Its files stay: {engine.program}")
    else:
        print(f"{engine.name} is removed, {size(freed)} are free again.")
    return 0


async def _test(options: argparse.Namespace) -> int:
    """Test one engine, by default what `serve` would take now."""
    from launcher.engine.self_test import check_engine

    show = _JsonLines() if options.json else _Lines()
    try:
        name, passed = await check_engine(options.name, on_step=show.step)
    finally:
        show.close()
    if options.json:
        print_json(_passed_json(name, passed))
        return 0
    devices = ", ".join(f"{device.name} ({device.description})" for device in passed.devices) or "none"
    rate = f" at {passed.tokens_per_second:,.0f} t/s" if passed.tokens_per_second else ""
    print(f"{name} works.")
    print(filled(passed.build.version, "  version  "))
    print(filled(devices, "  GPUs     "))
    print(filled(f"{passed.drafts} on the demo model{rate}, in {passed.seconds:.1f} s", "  MTP      "))
    for note in passed.notes:
        print(filled(note, "  note     "))
    return 0


def _passed_json(name: str, passed: Passed) -> dict[str, Any]:
    return {
        "event": "done",
        "name": name,
        "version": passed.build.version,
        "devices": [{"name": device.name, "description": device.description} for device in passed.devices],
        "drafted": passed.drafted,
        "accepted": passed.accepted,
        "tokens_per_second": rounded(passed.tokens_per_second),
        "seconds": rounded(passed.seconds, 3),
        "notes": list(passed.notes),
    }


class _Lines:
    """What a person sees, on stderr."""

    def __init__(self) -> None:
        self._bar = Bar()
        self._last = ""

    def __call__(self, progress: InstallProgress) -> None:
        transfer = progress.transfer
        if transfer is None:
            self.close()
            print(filled(progress.text, "  ") if progress.note else f"{progress.text} ...", file=sys.stderr, flush=True)
            return
        if progress.text != self._last:
            self._last = progress.text
            self.close()
            print(f"{progress.text} ...", file=sys.stderr, flush=True)
        self._bar.show(
            transfer.phase.value.capitalize(),
            progress.done_bytes,
            progress.bytes,
            speed=transfer.bytes_per_second,
            note=transfer.note,
        )

    def step(self, text: str) -> None:
        print(f"{text} ...", file=sys.stderr, flush=True)

    def close(self) -> None:
        self._bar.close()

    def interrupted(self) -> None:
        print(
            "Interrupted: nothing was changed. What was downloaded is kept, and the same command goes on from there.",
            file=sys.stderr,
        )


class _JsonLines:
    """What a program sees: one object a line."""

    def __init__(self) -> None:
        self._told_s: float | None = None

    def __call__(self, progress: InstallProgress) -> None:
        transfer = progress.transfer
        if transfer is None:
            print_json({"event": "note" if progress.note else "step", "text": progress.text})
            return
        now_s = time.monotonic()
        if self._told_s is not None and now_s - self._told_s < _EVENT_S:
            return
        self._told_s = now_s
        print_json(
            {
                "event": "progress",
                "phase": transfer.phase.name.lower(),
                "text": progress.text,
                "done_bytes": progress.done_bytes,
                "bytes": progress.bytes,
                "bytes_per_second": rounded(transfer.bytes_per_second),
                "note": transfer.note or None,
            }
        )

    def step(self, text: str) -> None:
        print_json({"event": "step", "text": text})

    def close(self) -> None:
        """Nothing is left open."""

    def interrupted(self) -> None:
        print_json({"event": "interrupted"})
