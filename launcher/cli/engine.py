"""`mtp-launcher engine`: list, install, test and switch engines, including official builds of llama.cpp."""

from __future__ import annotations

import argparse
import asyncio
from functools import partial
from typing import TYPE_CHECKING, Any

from launcher.app.settings import transfer_settings
from launcher.base.codec import JsonView, to_json
from launcher.base.errors import BadOption, LauncherError
from launcher.base.paths import expand_user
from launcher.base.progress import Phase, Progress
from launcher.cli.layout import UNKNOWN, format_table, wrap_text
from launcher.cli.output import Note, Result, round_figure
from launcher.cli.progress import Reporter, format_size
from launcher.engine.builds import installed
from launcher.engine.builds.discovery import find_engines
from launcher.engine.builds.installed import read_store
from launcher.engine.builds.known_bad import find_known_fault
from launcher.engine.builds.probe import probe_engine

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable, Iterator, Sequence

    from launcher.engine.builds.discovery import FoundEngine
    from launcher.engine.builds.flags import Flag
    from launcher.engine.builds.installed import EngineStore, InstalledEngine, Manifest
    from launcher.engine.builds.known_bad import KnownFault
    from launcher.engine.builds.offers import Offer
    from launcher.engine.builds.self_test import SelfTestResult


async def run(options: argparse.Namespace) -> Result:
    """Run the action `options.action`. Raises an error if it fails."""
    actions: dict[str, Callable[[argparse.Namespace], Awaitable[Result]]] = {
        "list": _list_engines,
        "flags": _list_flags,
        "available": _list_available,
        "install": _install_engine,
        "add": _add_engine,
        "remove": _remove_engine,
        "test": _test_engine,
        "compare": _compare_engines,
    }
    return await actions.get(options.action or "list", _change_engine_in_use)(options)


async def _install_engine(options: argparse.Namespace) -> Result:
    from launcher.engine.builds.install import install_build

    reporter = Reporter(as_json=options.json)
    try:
        engine = await install_build(
            options.tag,
            options.backend,
            anyway=options.anyway,
            on_progress=partial(_show_install, reporter),
            on_note=partial(_show_note, reporter),
            settings=transfer_settings(),
        )
    except asyncio.CancelledError:
        note = "Interrupted: nothing was changed. Received data is kept; the same command resumes."
        reporter.show_event({"event": "interrupted"}, [Note(note)])
        raise
    finally:
        reporter.close()
    current = read_store().current
    lines = []
    if current != engine.name:
        lines = [f"{engine.name} is installed; {_describe_engine_name(current)} stays in use."]
    elif engine.manifest is not None:
        drafts = _describe_drafts(engine.manifest)
        lines = [f"{engine.name} is in use now: `mtp-launcher serve` takes it. {drafts}".rstrip()]
    return Result({"event": "done", "current": current == engine.name, **_engine_json(engine)}, lines)


def _describe_drafts(manifest: Manifest) -> str:
    if not manifest.drafted:
        return ""
    return f"Its test: {manifest.accepted} of {manifest.drafted} drafted tokens accepted."


async def _change_engine_in_use(options: argparse.Namespace) -> Result:
    """Carry out `use`, `pin`, `unpin` or `rollback`."""
    before = installed.read_store()
    match options.action:
        case "use":
            store = installed.use_engine(options.name)
        case "pin":
            store = installed.pin_engine(options.name)
        case "unpin":
            store = installed.unpin_engine()
        case _:
            store = installed.roll_back()
    lines = [_describe_engine_in_use(store)]
    if before.pinned and not store.pinned and options.action != "unpin":
        lines.append(f"{before.current} is no longer pinned; `mtp-launcher engine pin` pins the engine in use.")
    if fault := _find_fault(store):
        lines.append(f"It is known to be bad: {fault.reason} ({fault.source}).")
    return Result({"current": store.current, "previous": store.previous, "pinned": store.pinned}, lines)


def _describe_engine_in_use(store: EngineStore) -> str:
    previous = f" Before: {_describe_engine_name(store.previous)}." if store.previous else ""
    return f"In use: {_describe_current(store)}{previous}"


def _describe_current(store: EngineStore) -> str:
    return f"{_IN_USE_WORDS.get(store.current, store.current)}{', pinned' if store.pinned else ''}."


async def _add_engine(options: argparse.Namespace) -> Result:
    program = await asyncio.to_thread(lambda: installed.find_program(expand_user(options.path).absolute()))
    await probe_engine(program)
    engine = installed.add_engine(program, options.name)
    return Result(
        _engine_json(engine),
        [f"{engine.name}: {engine.program}", f"`mtp-launcher engine use {engine.name}` puts it in use."],
    )


async def _remove_engine(options: argparse.Namespace) -> Result:
    engine, freed = await asyncio.to_thread(installed.remove_engine, options.name)
    if engine.manifest is None:
        line = f"{engine.name} is no longer listed. Its files stay: {engine.program}"
    else:
        line = f"{engine.name} is removed, {format_size(freed)} are free again."
    return Result({"removed": engine.name, "freed_bytes": freed}, [line])


async def _test_engine(options: argparse.Namespace) -> Result:
    """Test one engine, by default the one that `serve` would use now."""
    from launcher.engine.builds.self_test import check_engine

    reporter = Reporter(as_json=options.json)
    name, result = await check_engine(
        options.name, on_step=lambda text: reporter.show_event({"event": "step", "text": text}, [Note(f"{text} ...")])
    )
    return Result({"event": "done", "name": name, **to_json(result, _TEST)}, _describe_test(name, result))


def _describe_test(name: str, result: SelfTestResult) -> Iterator[str]:
    devices = ", ".join(f"{device.name} ({device.description})" for device in result.devices) or "none"
    rate = f" at {result.tokens_per_second:,.0f} t/s" if result.tokens_per_second else ""
    yield f"{name} works."
    yield wrap_text(result.build.version, "  version  ")
    yield wrap_text(devices, "  GPUs     ")
    yield wrap_text(f"{result.acceptance_text} on the demo model{rate}, in {result.seconds:.1f} s", "  MTP      ")
    if result.slot_files.value != "complete":
        yield wrap_text("after a restart, conversations are read again in full", "  slots    ")
    for note in result.notes:
        yield wrap_text(note, "  note     ")


async def _compare_engines(options: argparse.Namespace) -> Result:
    """Compare two engines, by default the one in use with the one before it, which is put in use again if faster."""
    from launcher.app.measuring.engine_comparison import compare_engines, describe_slower_build
    from launcher.app.measuring.saved_tunes import check_no_tune
    from launcher.app.serving.session import ServerSession

    if options.names and len(options.names) != 2:
        raise BadOption("Name two engines, or none.", "`mtp-launcher engine list` shows their names.")
    await asyncio.to_thread(check_no_tune)
    store = read_store()
    pair = tuple(store.find_engine(name) for name in options.names) or store.find_update()
    if pair is None:
        raise BadOption(
            "There is no engine before the one in use to compare it with.", "Name two: `engine compare NAME NAME`."
        )
    new, old = pair
    reporter = Reporter(as_json=options.json)

    def show_turn(name: str, rate: float) -> None:
        data = {"event": "turn", "engine": name, "tokens_per_second": round_figure(rate)}
        reporter.show_event(data, [Note(f"  {name}: {rate:.1f} tokens/s")])

    session, seconds = ServerSession(), 60 * options.minutes
    try:
        found = await compare_engines(
            session, new, old, options.model, seconds=seconds, on_turn=show_turn, is_update=not options.names
        )
    finally:
        reporter.close()
        await session.stop()
    current = read_store().current
    row = describe_slower_build(found).as_row() if found.is_slower else None
    data = {**to_json(found), "event": "done", "current": current, "known_bad_row": row}
    lines = [wrap_text(found.sentence)]
    if not options.names:
        lines.append(f"In use: {_describe_engine_name(current)}.")
    if row is not None:
        lines += [
            "",
            "To report it, a row for resources/known-bad-builds.toml:",
            "",
            row,
        ]
    return Result(data, lines)


def _show_install(reporter: Reporter, progress: Progress) -> None:
    if progress.phase is Phase.WORKING:
        reporter.show_event({"event": "step", "text": progress.item}, [Note(f"{progress.item} ...")])
        return
    text = f"Downloading {progress.item}"
    reporter.show_event(None, [Note(f"{text} ...")], topic="step", state=text)
    data = {"event": "progress", "phase": progress.phase.value, "text": text}
    reporter.show_progress(progress.phase.value.capitalize(), progress, data)


def _show_note(reporter: Reporter, text: str) -> None:
    reporter.show_event({"event": "note", "text": text}, [Note(wrap_text(text, "  "))])


# `mtp-launcher engine list` and `available`, and output shared with the other actions.

_TEST = JsonView(
    "version=build.version devices drafted accepted tokens_per_second:1 seconds:3 notes slot_files",
    devices=JsonView("name description"),
)
_FOUND = JsonView(
    "name from=origin path=program version=build.version backends mtp known_bad=fault.reason current pinned error"
)
_OFFER = JsonView(
    "tag=release.tag published=release.published backend=choice.build.label bytes reasons=choice.reasons* "
    "obstacle known_bad=fault.reason",
    obstacle=JsonView("code message=title"),
)
_IN_USE_WORDS = {
    "auto": "the usual choice (auto): a llama-server on PATH that sees a GPU, else the built-in engine",
    "built-in": "the built-in engine",
}
_DATE_LENGTH = 10
"""Characters of the date at the start of an ISO 8601 timestamp."""


async def _list_engines(_options: argparse.Namespace) -> Result:
    """List all engines of this computer."""
    engines, store = await find_engines()
    data = {
        "current": store.current,
        "previous": store.previous,
        "pinned": store.pinned,
        "engines": to_json(engines, _FOUND),
        "notice": store.notice,
    }
    return Result(data, _describe_engines(engines, store))


def _describe_engines(engines: Sequence[FoundEngine], store: EngineStore) -> Iterator[str]:
    if store.notice:
        yield Note(f"Note: {store.notice}")
    yield from format_table([("", "NAME", "FROM", "BACKEND", "MTP", "VERSION"), *map(_format_row, engines)], indent="")
    yield ""
    yield wrap_text(_describe_current(store), "In use: ")
    if store.previous:
        yield f"`mtp-launcher engine rollback` goes back to {_describe_engine_name(store.previous)}."
    if store.current not in _IN_USE_WORDS and not any(each.current for each in engines):
        yield "It is missing: `mtp-launcher engine rollback`, or `engine use auto`."
    for each in engines:
        if each.error is not None:
            yield wrap_text(f"{each.error.title} {each.error.hint}", f"{each.name}: ")
        if each.fault is not None:
            yield wrap_text(f"known to be bad: {each.fault.reason} ({each.fault.source}).", f"{each.name}: ")


def _format_row(engine: FoundEngine) -> tuple[str, ...]:
    mark = "*" if engine.current else ""
    mtp = {True: "yes", False: "no", None: UNKNOWN}[engine.mtp]
    if engine.fault is not None:
        mtp = "bad"
    backends = UNKNOWN if engine.backends is None else ", ".join(engine.backends)
    version = _cut_commit(engine.build.version) if engine.build else "does not work"
    return mark, engine.name, engine.origin, backends, mtp, version


def _cut_commit(version: str) -> str:
    """Return a version without its commit: `0.5.0 (build 10745, commit 1a2b3c)` becomes `0.5.0 (build 10745)`."""
    shown, commit, _ = version.partition(", commit")
    return f"{shown})" if commit and "(" in shown else shown


async def _list_available(options: argparse.Namespace) -> Result:
    """List the newest builds and their variants for this computer."""
    from launcher.engine.builds.install import list_available_builds
    from launcher.engine.builds.releases import STABLE, ReleaseClient

    releases = ReleaseClient()
    offers = await list_available_builds(options.backend, releases=releases)
    try:
        stable = await releases.resolve_tag(STABLE)
    except LauncherError as error:
        stable = None
        releases.notes.append(f"Which build is stable is not known: {error.title}")
    store = read_store()
    installed = {engine.manifest.tag for engine in store.engines if engine.manifest}
    builds = [
        {**to_json(each, _OFFER), "stable": each.release.tag == stable, "installed": each.release.tag in installed}
        for each in offers
    ]
    lines = [Note(wrap_text(note, "Note: ")) for note in dict.fromkeys(releases.notes)]
    return Result(
        {"stable": stable, "builds": builds, "notes": releases.notes},
        [*lines, *_describe_offers(offers, stable, installed)],
    )


def _describe_offers(offers: Sequence[Offer], stable: str | None, installed: set[str]) -> Iterator[str]:
    if offers:
        header = ("BUILD", "PUBLISHED", "FOR THIS COMPUTER", "SIZE", "")
        rows = [_offer_row(offer, stable, installed) for offer in offers]
        yield from format_table([header, *rows], right=(3,), indent="")
        first = next((offer.choice for offer in offers if offer.choice), None)
        if first is not None:
            yield f"\n{wrap_text(' '.join(first.reasons))}"
        for offer in offers:
            if offer.obstacle is not None:
                names_build = offer.obstacle.title.startswith(offer.release.tag)
                yield wrap_text(offer.obstacle.title, "" if names_build else f"{offer.release.tag}: ")
    else:
        yield "There are no numbered builds among the releases."
    if stable is not None:
        install = f"`mtp-launcher engine install` takes {stable}, `engine install nightly` the newest."
        yield wrap_text(install, "Stable: ")


def _offer_row(offer: Offer, stable: str | None, installed: set[str]) -> tuple[str, ...]:
    tag = offer.release.tag
    marks = [
        "stable" if tag == stable else "",
        "installed" if tag in installed else "",
        f"known to be bad: {offer.fault.reason}" if offer.fault else "",
    ]
    label = offer.choice.build.label if offer.choice else "nothing yet"
    size = UNKNOWN if offer.bytes is None else format_size(offer.bytes)
    return tag, (offer.release.published or UNKNOWN)[:_DATE_LENGTH], label, size, ", ".join(filter(None, marks))


def _describe_engine_name(name: str) -> str:
    """Return an engine's name for the middle of a sentence."""
    return {"auto": "the usual choice (auto)", "built-in": "the built-in engine"}.get(name, name)


def _engine_json(engine: InstalledEngine) -> dict[str, Any]:
    """Return an installed engine as JSON."""
    manifest = engine.manifest.model_dump() if engine.manifest else {}
    return {"name": engine.name, "path": str(engine.program), **manifest}


def _find_fault(store: EngineStore) -> KnownFault | None:
    """Return the known fault of the engine in use, or None."""
    return next((find_known_fault(each.number) for each in store.engines if each.name == store.current), None)


async def _list_flags(options: argparse.Namespace) -> Result:
    """List the flags of the engine that `serve` would use, or of the named one."""
    from launcher.app.planning.planner import probe_engine_in_use
    from launcher.engine.builds.flags import read_flags

    build = None if options.engine else await probe_engine_in_use()
    if build is None:
        build = await probe_engine(options.engine)
    flags = [flag for flag in await read_flags(build) if flag.matches_search(" ".join(options.search))]
    data = {"engine": build.name, "version": build.version, "flags": flags}
    return Result(data, [f"{build.name} {build.version}: {len(flags)} flags", *map(_describe_flag, flags)])


def _describe_flag(flag: Flag) -> str:
    value = f" {flag.placeholder}" if flag.placeholder else ""
    description = wrap_text(flag.description, "    ") if flag.description else "    (not explained)"
    return f"\n{', '.join(flag.names)}{value}\n{description}"
