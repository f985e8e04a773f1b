"""`mtp-launcher engine list` and `available`, and what the other actions of `engine` show of one."""

from __future__ import annotations

import argparse
import sys
from dataclasses import asdict
from typing import TYPE_CHECKING, Any

from launcher.cli.bar import size
from launcher.cli.layout import filled, print_table
from launcher.cli.output import print_json

if TYPE_CHECKING:
    from launcher.engine.found import FoundEngine
    from launcher.engine.installed import InstalledEngine, Store
    from launcher.engine.known_bad import Fault
    from launcher.engine.offers import Offer

_UNKNOWN = "–"  # noqa: RUF001 -- the sign for an unknown value
IN_USE_WORDS = {
    "auto": "the usual choice (auto): a llama-server on PATH that sees a GPU, else the built-in engine",
    "built-in": "the built-in engine",
}
_DAY = 10
"""Characters of a date in ISO 8601."""


async def list_engines(options: argparse.Namespace) -> int:
    """Print all engines of this computer."""
    from launcher.engine.found import find_engines

    engines, store = await find_engines()
    if options.json:
        print_json(
            {
                "current": store.current,
                "previous": store.previous,
                "pinned": store.pinned,
                "engines": [_found_json(each) for each in engines],
                "notice": store.notice,
            }
        )
        return 0
    if store.notice:
        print(f"Note: {store.notice}", file=sys.stderr)
    print_table([("", "NAME", "FROM", "BACKEND", "MTP", "VERSION"), *map(_row, engines)], indent="")
    print()
    name = IN_USE_WORDS.get(store.current, store.current)
    print(filled(f"{name}{', pinned' if store.pinned else ''}.", "In use: "))
    if store.previous:
        print(f"`mtp-launcher engine rollback` goes back to {short(store.previous)}.")
    if store.current not in IN_USE_WORDS and not any(each.current for each in engines):
        print("It is not there any more: `mtp-launcher engine rollback`, or `engine use auto`.")
    for each in engines:
        if each.error is not None:
            print(filled(f"{each.error.title} {each.error.hint}", f"{each.name}: "))
        if each.fault is not None:
            print(filled(f"known to be bad: {each.fault.reason} ({each.fault.source}).", f"{each.name}: "))
    return 0


def _row(engine: FoundEngine) -> tuple[str, ...]:
    mark = "*" if engine.current else ""
    mtp = {True: "yes", False: "no", None: _UNKNOWN}[engine.mtp]
    if engine.fault is not None:
        mtp = "bad"
    backends = _UNKNOWN if engine.backends is None else ", ".join(engine.backends)
    version = engine.build.version if engine.build else "does not work"
    return mark, engine.name, engine.origin, backends, mtp, version.partition(", commit")[0] + _closing(version)


def _closing(version: str) -> str:
    return ")" if ", commit" in version and "(" in version.partition(", commit")[0] else ""


def _found_json(engine: FoundEngine) -> dict[str, Any]:
    error = engine.error
    return {
        "name": engine.name,
        "from": engine.origin,
        "path": None if engine.program is None else str(engine.program),
        "version": engine.build.version if engine.build else None,
        "backends": None if engine.backends is None else list(engine.backends),
        "mtp": engine.mtp,
        "known_bad": None if engine.fault is None else engine.fault.reason,
        "current": engine.current,
        "pinned": engine.pinned,
        "error": None if error is None else {"code": error.code, "message": error.title, "hint": error.hint},
    }


async def list_available(options: argparse.Namespace) -> int:
    """Print what the newest builds offer this computer."""
    from launcher.base.errors import LauncherError
    from launcher.engine.install import available
    from launcher.engine.installed import read_store
    from launcher.engine.releases import STABLE, Releases

    releases = Releases()
    found = await available(options.backend, releases=releases)
    try:
        stable = await releases.build_tag(STABLE)
    except LauncherError as error:
        stable = None
        releases.notes.append(f"Which build is stable is not known: {error.title}")
    store = read_store()
    installed = {engine.manifest.tag for engine in store.engines if engine.manifest}
    if options.json:
        told = [_offer_json(offer, stable, installed) for offer in found]
        print_json({"stable": stable, "builds": told, "notes": releases.notes})
        return 0
    for note in dict.fromkeys(releases.notes):
        print(filled(note, "Note: "), file=sys.stderr)
    if found:
        header = ("BUILD", "PUBLISHED", "FOR THIS COMPUTER", "SIZE", "")
        print_table([header, *(_offer_row(offer, stable, installed) for offer in found)], right=(3,), indent="")
        first = next((offer.choice for offer in found if offer.choice), None)
        if first is not None:
            print()
            print(filled(" ".join(first.reasons)))
        for offer in found:
            if offer.obstacle is not None:
                named = offer.obstacle.title.startswith(offer.release.tag)
                print(filled(offer.obstacle.title, "" if named else f"{offer.release.tag}: "))
    else:
        print("There are no numbered builds among the releases.")
    if stable is not None:
        print(filled(f"`mtp-launcher engine install` takes {stable}, `engine install nightly` the newest.", "Stable: "))
    return 0


def _offer_row(offer: Offer, stable: str | None, installed: set[str]) -> tuple[str, ...]:
    tag = offer.release.tag
    marks = [
        "stable" if tag == stable else "",
        "installed" if tag in installed else "",
        f"known to be bad: {offer.fault.reason}" if offer.fault else "",
    ]
    label = offer.choice.build.label if offer.choice else "nothing yet"
    weight = _UNKNOWN if offer.bytes is None else size(offer.bytes)
    return tag, (offer.release.published or _UNKNOWN)[:_DAY], label, weight, ", ".join(filter(None, marks))


def _offer_json(offer: Offer, stable: str | None, installed: set[str]) -> dict[str, Any]:
    obstacle = offer.obstacle
    return {
        "tag": offer.release.tag,
        "published": offer.release.published,
        "backend": offer.choice.build.label if offer.choice else None,
        "bytes": offer.bytes,
        "reasons": list(offer.choice.reasons) if offer.choice else [],
        "obstacle": None if obstacle is None else {"code": obstacle.code, "message": obstacle.title},
        "known_bad": None if offer.fault is None else offer.fault.reason,
        "stable": offer.release.tag == stable,
        "installed": offer.release.tag in installed,
    }


def short(name: str) -> str:
    """Return what may be in use as a sentence names it."""
    return {"auto": "the usual choice (auto)", "built-in": "the built-in engine"}.get(name, name)


def engine_json(engine: InstalledEngine) -> dict[str, Any]:
    """Return what --json tells of an engine of the store."""
    manifest = engine.manifest.model_dump() if engine.manifest else {}
    return {"name": engine.name, "path": str(engine.program), **manifest}


def fault_in(store: Store) -> Fault | None:
    """Return what is known to be wrong with the engine in use, or None."""
    from launcher.engine.known_bad import fault_of

    return next((fault_of(each.number) for each in store.engines if each.name == store.current), None)


async def list_flags(options: argparse.Namespace) -> int:
    """Print the flags of the engine that `serve` would take, or of the one that is named."""
    from launcher.engine.build import probe
    from launcher.engine.flags import flags_of
    from launcher.planner import installed_build

    build = await probe(options.engine) if options.engine else await installed_build() or await probe(None)
    found = [flag for flag in await flags_of(build) if flag.matches(" ".join(options.search))]
    if options.json:
        print_json({"engine": build.name, "version": build.version, "flags": [asdict(flag) for flag in found]})
        return 0
    print(f"{build.name} {build.version}: {len(found)} flags")
    for flag in found:
        value = f" {flag.value}" if flag.value else ""
        print(f"\n{', '.join(flag.names)}{value}")
        print(filled(flag.description, "    ") if flag.description else "    (not explained)")
    return 0
