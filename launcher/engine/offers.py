"""What the releases offer a computer: which builds are whole, and which archives of them it would take."""

import asyncio
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from itertools import islice

from launcher.base.errors import LauncherError
from launcher.engine.assets import Choice, Target, choose, slowness
from launcher.engine.install_errors import EngineUnfit, KnownBad, ReleaseMissing
from launcher.engine.known_bad import Fault, fault_of
from launcher.engine.releases import NIGHTLY, STABLE, Asset, Release, Releases

_LOOKED_AT = 20
"""So many builds are looked at for one that is whole: about three days of them."""


@dataclass(frozen=True, slots=True)
class Offer:
    """A release for one computer: what it would take of it (None: nothing, for `obstacle`), and what is known of it."""

    release: Release
    choice: Choice | None
    obstacle: LauncherError | None
    fault: Fault | None

    @property
    def bytes(self) -> int | None:
        """The size of the archives; None when nothing suits."""
        return sum(asset.bytes for asset in files_of(self.release, self.choice)) if self.choice else None


def files_of(release: Release, choice: Choice) -> tuple[Asset, ...]:
    """Return the archives of a choice: the build, and its runtime if it needs one."""
    names = [choice.build.name, *filter(None, [choice.build.runtime])]
    return tuple(release.assets[name] for name in names)


def offer_of(release: Release, target: Target, backend: str | None = None) -> Offer:
    """Return what one release offers. One that is still being published offers nothing."""
    fault = fault_of(int(release.tag[1:]))
    try:
        first = choose(target, release.ready, backend)[0]
    except EngineUnfit as error:
        pending = _pending(release)
        return Offer(release, None, _unfinished(release.tag, pending) if pending else error, fault)
    try:
        planned = choose(target, release.assets.keys(), backend)[0]
    except EngineUnfit:
        planned = first
    if planned.build != first.build:
        return Offer(release, None, _unfinished(release.tag, [planned.build.name]), fault)
    return Offer(release, first, None, fault)


def offers(
    releases: Iterable[Release], target: Target, backend: str | None = None, count: int = _LOOKED_AT
) -> tuple[Offer, ...]:
    """Return the offers of builds, the newest first.

    Files are added to a release one by one: a new one that lacks what an older one has offers nothing yet.
    """
    found = [offer_of(release, target, backend) for release in islice(releases, count)]
    return tuple(_unless_still_coming(offer, found[place + 1 :]) for place, offer in enumerate(found))


def newest(found: Sequence[Offer]) -> Offer:
    """Return the newest offer that can be taken. Raises ReleaseMissing or EngineUnfit."""
    for offer in found:
        if offer.choice is not None and offer.fault is None:
            return offer
    raise next(
        (offer.obstacle for offer in found if isinstance(offer.obstacle, EngineUnfit)),
        ReleaseMissing("No build that is whole was found among the newest releases.", "Try again later."),
    )


async def offered(
    releases: Releases, target: Target, tag: str | None, backend: str | None, *, anyway: bool = False
) -> Offer:
    """Return the offer that a user means by a tag or a channel; None is the stable one.

    Raises KnownBad for a build that is known to be, unless it is named exactly and meant `anyway`; ReleaseMissing,
    EngineUnfit, and what Releases raises.
    """
    if tag == NIGHTLY:
        return newest(await asyncio.to_thread(lambda: offers(releases.builds(), target, backend)))
    build = await releases.build_tag(tag or STABLE)
    fault = fault_of(int(build[1:]))
    if fault is not None and not (anyway and tag == build):
        raise KnownBad(
            f"{build} is known to be bad: {fault.reason}.",
            f"Take b{fault.mended} or newer; `mtp-launcher engine install {build} --anyway` takes it all the same.",
            source=fault.source,
        )
    offer = offer_of(await asyncio.to_thread(releases.release, build), target, backend)
    if offer.obstacle is not None:
        raise offer.obstacle
    return offer


def _unless_still_coming(offer: Offer, older: Sequence[Offer]) -> Offer:
    """Return an offer; one that lacks what an older one has as one that offers nothing yet."""
    best = min((other for other in older if other.choice), key=_rank, default=None)
    if best is None or best.choice is None or isinstance(offer.obstacle, ReleaseMissing):
        return offer
    if offer.choice is not None and _rank(offer) <= _rank(best):
        return offer
    missing = best.choice.build.name.replace(best.release.tag, offer.release.tag)
    return Offer(offer.release, None, _unfinished(offer.release.tag, [missing]), offer.fault)


def _rank(offer: Offer) -> int:
    return slowness(offer.choice.build.backend if offer.choice else "")


def _pending(release: Release) -> list[str]:
    return sorted(release.assets.keys() - release.ready)


def _unfinished(tag: str, names: Sequence[str]) -> ReleaseMissing:
    return ReleaseMissing(
        f"{tag} is still being published: {names[0]} is not there yet.",
        "Try again in some minutes, or take an older build.",
        missing=list(names[:10]),
    )
