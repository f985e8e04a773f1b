"""Selection of llama.cpp releases for one computer: which are complete, and which archives to download."""

import asyncio
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from itertools import islice

from launcher.base.errors import LauncherError
from launcher.base.messages import command_name, join_messages, message
from launcher.engine.builds.assets import BuildChoice, TargetComputer, choose_builds, fallback_rank
from launcher.engine.builds.install_errors import EngineUnfit, KnownBadBuild, ReleaseMissing
from launcher.engine.builds.known_bad import KnownFault, find_known_fault
from launcher.engine.builds.releases import NIGHTLY, STABLE, Asset, Release, ReleaseClient

_SEARCHED_BUILDS = 20
"""Number of recent builds searched for a complete one; they cover about three days."""


@dataclass(frozen=True, slots=True)
class Offer:
    """A release as it applies to one computer.

    `choice` is the build to download; it is None if none can be used, and `obstacle` is the reason. `fault` is an entry
    of the known-bad list that covers this release, if there is one.
    """

    release: Release
    choice: BuildChoice | None
    obstacle: LauncherError | None
    fault: KnownFault | None

    @property
    def bytes(self) -> int | None:
        """Download size of the chosen archives in bytes; None if there is no choice."""
        return sum(asset.bytes for asset in archives_of(self.release, self.choice)) if self.choice else None


def archives_of(release: Release, choice: BuildChoice) -> tuple[Asset, ...]:
    """Return the archives to download: the build, and its CUDA runtime if it needs one."""
    names = [choice.build.name, *filter(None, [choice.build.runtime])]
    return tuple(release.assets[name] for name in names)


def evaluate_release(release: Release, target: TargetComputer, backend: str | None = None) -> Offer:
    """Evaluate one release for a computer. A release that is still being published has no choice yet."""
    fault = find_known_fault(int(release.tag[1:]))
    try:
        first = choose_builds(target, release.uploaded_names, backend)[0]
    except EngineUnfit as error:
        pending = _pending_files(release)
        return Offer(release, None, _unfinished_error(release.tag, pending) if pending else error, fault)
    # Choose again among all announced files: if the best one is not uploaded yet, wait for it instead of taking a
    # slower build that happens to be there already.
    try:
        planned = choose_builds(target, release.assets.keys(), backend)[0]
    except EngineUnfit:
        planned = first
    if planned.build != first.build:
        return Offer(release, None, _unfinished_error(release.tag, [planned.build.name]), fault)
    return Offer(release, first, None, fault)


def list_offers(
    releases: Iterable[Release], target: TargetComputer, backend: str | None = None, count: int = _SEARCHED_BUILDS
) -> tuple[Offer, ...]:
    """Evaluate up to `count` releases, newest first.

    Files are added to a release one by one. So a release that lacks the build that an older one has counts as still
    being published.
    """
    offers = [evaluate_release(release, target, backend) for release in islice(releases, count)]
    return tuple(_mark_unfinished(offer, offers[index + 1 :]) for index, offer in enumerate(offers))


def newest_usable(offers: Sequence[Offer]) -> Offer:
    """Return the newest offer that can be installed and is not known-bad. Raises ReleaseMissing or EngineUnfit."""
    for offer in offers:
        if offer.choice is not None and offer.fault is None:
            return offer
    raise next(
        (offer.obstacle for offer in offers if isinstance(offer.obstacle, EngineUnfit)),
        ReleaseMissing(message("None of the newest releases is complete."), message("Try again later.")),
    )


async def find_offer(
    releases: ReleaseClient, target: TargetComputer, tag: str | None, backend: str | None, *, anyway: bool = False
) -> Offer:
    """Return the offer for a tag or channel; None means the stable channel.

    Raises KnownBadBuild for a known-bad build, unless `anyway` is set and `tag` is exactly that build; ReleaseMissing,
    EngineUnfit, and the errors of ReleaseClient.
    """
    if tag == NIGHTLY:
        return newest_usable(await asyncio.to_thread(lambda: list_offers(releases.fetch_builds(), target, backend)))
    build = await releases.resolve_tag(tag or STABLE)
    fault = find_known_fault(int(build[1:]))
    if fault is not None and not (anyway and tag == build):
        raise KnownBadBuild(
            message("{build} has a known bug: {reason}.", build=build, reason=fault.reason),
            join_messages(
                fault.advice,
                message("[To install it anyway: {command}.]", command=command_name(f"engine install {build} --anyway")),
            ),
            source=fault.source,
        )
    offer = evaluate_release(await asyncio.to_thread(releases.fetch_release, build), target, backend)
    if offer.obstacle is not None:
        raise offer.obstacle
    return offer


def _mark_unfinished(offer: Offer, older: Sequence[Offer]) -> Offer:
    """Return `offer`, or an unfinished offer if an older release has a faster backend that this one lacks."""
    best = min((other for other in older if other.choice), key=_offer_rank, default=None)
    if best is None or best.choice is None or isinstance(offer.obstacle, ReleaseMissing):
        return offer
    if offer.choice is not None and _offer_rank(offer) <= _offer_rank(best):
        return offer
    missing = best.choice.build.name.replace(best.release.tag, offer.release.tag)
    return Offer(offer.release, None, _unfinished_error(offer.release.tag, [missing]), offer.fault)


def _offer_rank(offer: Offer) -> int:
    return fallback_rank(offer.choice.build.backend if offer.choice else "")


def _pending_files(release: Release) -> list[str]:
    return sorted(release.assets.keys() - release.uploaded_names)


def _unfinished_error(tag: str, names: Sequence[str]) -> ReleaseMissing:
    return ReleaseMissing(
        message("{tag} is still being published: {names} is missing.", tag=tag, names=names[0]),
        message("Try again in a few minutes, or choose an older build."),
        missing=list(names[:10]),
    )
