"""Errors a user can act on. Foreign exceptions become one of these at a room's edge."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from launcher.base.action import Action


class LauncherError(Exception):
    """Something a user can meet: what happened and why, then what to do.

    `title` is one sentence, `hint` the next step, `facts` the figures behind them (for --json and logs).
    `code` is stable: scripts may rely on it. `actions` are next steps for the program to offer, best first.
    """

    code = "error"

    def __init__(self, title: str, hint: str = "", **facts: object) -> None:
        super().__init__(title)
        self.title = title
        self.hint = hint
        self.facts: Mapping[str, object] = facts
        self.actions: tuple[Action, ...] = ()

    def propose(self, actions: Iterable[Action]) -> None:
        """Let it carry `actions`, also among the facts, which other processes see."""
        self.actions = tuple(actions)
        self.facts = {**self.facts, "actions": [action.as_json() for action in self.actions]}

    def __str__(self) -> str:
        return f"{self.title} {self.hint}".rstrip()


class BadOption(LauncherError):
    """An option's value cannot be used."""

    code = "bad_option"


class HomeUnusable(LauncherError):
    """A folder for what the program writes cannot be used."""

    code = "home_unusable"


class FolderNotOurs(HomeUnusable):
    """A folder for keys belongs to another user."""

    code = "folder_not_ours"


class ModelMissing(LauncherError):
    """There is no such model file, or it cannot be read."""

    code = "model_missing"


class ModelUnknown(LauncherError):
    """The catalogue has no model, or the model no file, of that name."""

    code = "model_unknown"


class ModelBroken(LauncherError):
    """The file is not a GGUF, is cut short, or its header makes no sense."""

    code = "model_broken"


class ModelReplaced(LauncherError):
    """A file on the hub is another one than the catalogue's, or than the one that is here."""

    code = "model_replaced"


class ModelUnexpected(LauncherError):
    """A file was received as the server has it, but it is not the model that it should be."""

    code = "model_unexpected"


class NothingFits(LauncherError):
    """No file of a model fits the machine."""

    code = "nothing_fits"


class ModelInUse(LauncherError):
    """A running server uses the file."""

    code = "model_in_use"


class ModelHasNoHead(LauncherError):
    """MTP was asked of a file that has no MTP head."""

    code = "model_has_no_mtp_head"


class GeometryUnknown(LauncherError):
    """A model's header does not tell what its memory follows from."""

    code = "geometry_unknown"


class GpuAsleep(LauncherError):
    """The GPU sleeps, and was not woken to be asked."""

    code = "gpu_asleep"


class CpuUnsupported(LauncherError):
    """The processor lacks an instruction set that the engine needs."""

    code = "cpu_unsupported"


class HostUnreadable(LauncherError):
    """The system does not tell what it has to tell of this computer."""

    code = "host_unreadable"


class LibraryMissing(LauncherError):
    """A system library is missing."""

    code = "library_missing"


class EngineMissing(LauncherError):
    """There is no such engine, or it cannot be started."""

    code = "engine_missing"


class EngineUnsuitable(LauncherError):
    """The engine runs, but cannot do what was asked (a flag it does not have, say)."""

    code = "engine_unsuitable"


class EngineBusy(LauncherError):
    """The engine, or the store of engines, is being used by another program."""

    code = "engine_busy"


class PortBusy(LauncherError):
    """Another program listens on the port."""

    code = "port_busy"


class GpuUnseen(LauncherError):
    """The engine does not see the GPU that it was chosen for."""

    code = "gpu_unseen"


class EngineFailed(LauncherError):
    """The engine ended or went silent before or while it served."""

    code = "engine_failed"


class EngineHung(EngineFailed):
    """The engine runs, but does nothing any more."""

    code = "engine_hung"


class CrashLoop(EngineFailed):
    """The engine crashed again and again, so it is not started any more. `reason` is the last crash."""

    code = "crash_loop"

    def __init__(self, crashes: int, seconds: float, reason: LauncherError) -> None:
        super().__init__(
            f"The engine crashed {crashes} times within {max(1, round(seconds))} s, so it is not started again. "
            f"The last time: {reason.title}",
            reason.hint,
            **(dict(reason.facts) | {"crashes": crashes, "reason": reason.code}),
        )
        self.reason = reason
        self.actions = reason.actions


class SettingsFailed(LauncherError):
    """A server did not start with new settings, so it runs with the old ones again. `reason` is why."""

    code = "settings_failed"

    def __init__(self, reason: LauncherError) -> None:
        super().__init__(
            f"The server did not start with the new settings, so it runs with the old ones again. {reason.title}",
            reason.hint,
            **(dict(reason.facts) | {"reason": reason.code}),
        )
        self.reason = reason
        self.actions = reason.actions


class TwinImpossible(LauncherError):
    """No sparse file can be made to ask the engine with."""

    code = "twin_impossible"


class DraftsInert(LauncherError):
    """The engine runs, but drafts nothing although MTP was asked for."""

    code = "drafts_inert"


class ActionImpossible(LauncherError):
    """What was proposed cannot be done by changing settings."""

    code = "action_impossible"


class Superseded(LauncherError):
    """A newer request to the same server took this one's place."""

    code = "superseded"


class ServerNotFound(LauncherError):
    """No running server is meant."""

    code = "server_not_found"


class SeveralServers(LauncherError):
    """More than one running server could be meant."""

    code = "several_servers"


class Unreachable(LauncherError):
    """A server did not answer, or broke off."""

    code = "unreachable"


class Untrusted(Unreachable):
    """A server cannot show that it is the one that was meant: waiting does not help."""

    code = "untrusted"


class NotOurEngine(Untrusted):
    """Another program listens where the engine of a registered server should."""

    code = "not_our_engine"


class ControlRefused(LauncherError):
    """A program of another user, or one without the token, asked a running server's program for something."""

    code = "control_refused"


class Refused(LauncherError):
    """A server answered with an error."""

    code = "refused"

    def __init__(self, title: str, hint: str = "", *, status: int | None = None, **facts: object) -> None:
        super().__init__(title, hint, status=status, **facts)
        self.status = status


class RateLimited(Refused):
    """A server takes no more requests from this address for some time."""

    code = "rate_limited"


class Offline(LauncherError):
    """The network is needed, but the user has said not to use it."""

    code = "offline"


class DownloadBroken(LauncherError):
    """What arrived is not the file that was promised. It is kept aside as .bad and never used."""

    code = "download_broken"


class DiskFull(LauncherError):
    """There is no room for a file. What has arrived of it is kept."""

    code = "disk_full"


class DownloadBusy(LauncherError):
    """Another process downloads the same file to the same place."""

    code = "download_busy"


class FileInTheWay(LauncherError):
    """Another file, which is not ours to overwrite, has the name that a file should get."""

    code = "file_in_the_way"


class JobUnknown(LauncherError):
    """The queue has no such job."""

    code = "job_unknown"


class WrittenByNewer(LauncherError):
    """A file of ours was written by a newer version of the program."""

    code = "written_by_newer"


class TargetUnusable(LauncherError):
    """Nothing can be written where a file should go."""

    code = "target_unusable"


class ConversationsUnusable(LauncherError):
    """The file of conversations cannot be read or written."""

    code = "conversations_unusable"


class ConversationMissing(LauncherError):
    """There is no such conversation, or several begin like that."""

    code = "conversation_missing"


class HistoryUnusable(LauncherError):
    """The history of measurements cannot be read or written."""

    code = "history_unusable"


class ResultMissing(LauncherError):
    """There is no such measurement, or several begin like that."""

    code = "result_missing"


class ResultUnreadable(LauncherError):
    """A file is no measurement, or no preset, of this program."""

    code = "result_unreadable"


class TuneMismatch(LauncherError):
    """A tune cannot be continued from a state, because that is of another tune or cannot be read."""

    code = "tune_mismatch"


class NothingMeasured(LauncherError):
    """Nothing could be measured of what was asked for."""

    code = "nothing_measured"
