"""Errors raised while installing, choosing or removing an engine."""

from launcher.base.errors import LauncherError


class EngineInUse(LauncherError):
    """The engine cannot be removed because it is in use, pinned, or built in."""

    code = "engine_kept"


class EngineUnfit(LauncherError):
    """No official build runs on this computer, or the requested one does not."""

    code = "engine_unfit"


class KnownBadBuild(LauncherError):
    """The build is on the known-bad list (resources/known-bad-builds.toml)."""

    code = "known_bad"


class SelfTestFailed(LauncherError):
    """An engine failed its self-test: wrong version, missing program, or a process that does not end."""

    code = "self_test_failed"


class ArchiveRefused(LauncherError):
    """An archive is damaged, or contains entries that an engine archive must not contain."""

    code = "archive_refused"


class ReleaseMissing(LauncherError):
    """The release does not exist, is still being published, or has files without a checksum."""

    code = "release_missing"


class BadProfile(LauncherError):
    """An engine profile in the config folder cannot be used."""

    code = "bad_profile"
