"""What can keep an engine from being installed or used."""

from launcher.base.errors import LauncherError


class EngineKept(LauncherError):
    """The engine stays because something depends on it: it is in use by default, or pinned."""

    code = "engine_kept"


class EngineUnfit(LauncherError):
    """No official build is for this computer, or not the one that was asked for."""

    code = "engine_unfit"


class KnownBad(LauncherError):
    """The build is known not to do what this program is for."""

    code = "known_bad"


class SelfTestFailed(LauncherError):
    """An engine was installed or tested and is not what it was taken for."""

    code = "self_test_failed"


class ArchiveRefused(LauncherError):
    """An archive is damaged, or holds what no engine's archive has a reason to hold."""

    code = "archive_refused"


class ReleaseMissing(LauncherError):
    """There is no such release, or it is not complete yet, or its files cannot be verified."""

    code = "release_missing"


class BadProfile(LauncherError):
    """An engine profile in the config folder cannot be used."""

    code = "bad_profile"
