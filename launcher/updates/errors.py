"""What can keep a newer version of this program from being found or installed."""

from launcher.base.errors import LauncherError


class ReleasesUnknown(LauncherError):
    """This build does not say where its releases are, or what it is told is no such address."""

    code = "releases_unknown"


class ManifestBroken(LauncherError):
    """What a server tells of a release is not understood."""

    code = "manifest_broken"


class NotOffered(LauncherError):
    """A release has no file for this computer, or this installation is not one that the program can renew."""

    code = "update_not_offered"


class UpdateWaits(LauncherError):
    """Nothing is installed while the program is in use."""

    code = "update_waits"


class UpdateFailed(LauncherError):
    """A newer version was received, but could not be installed."""

    code = "update_failed"
