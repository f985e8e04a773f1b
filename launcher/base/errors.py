"""Errors that a user can act on. Each room turns exceptions of other libraries into one of these."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import TYPE_CHECKING, ClassVar

from launcher.base.codec import JsonView, to_json
from launcher.base.messages import Message, join_messages, message
from launcher.base.text import hide_logins

if TYPE_CHECKING:
    from launcher.base.action import Action


INTERRUPTED = "reply_interrupted"
"""Type of the error by which the gateway ends a stream whose engine has ended."""
GAVE_WAY = "gave_way"
"""Type of the error by which the gateway ends a measurement's request when a client sends one."""


class LauncherError(Exception):
    """An error for users: what happened and why, then what to do.

    `title` is one sentence, `hint` the next step, `facts` the values behind them (for --json and logs). `code` is
    stable: scripts may rely on it. `actions` are suggested fixes, best first. Passwords in web addresses are hidden:
    users paste errors into bug reports.
    """

    JSON_VIEW: ClassVar[JsonView] = JsonView("code message=title hint")
    code = "error"

    def __init__(self, title: str, hint: str = "", **facts: object) -> None:
        self.title = hide_logins(title)
        self.hint = hide_logins(hint)
        super().__init__(self.title)
        self.facts: Mapping[str, object] = {
            name: hide_logins(fact) if isinstance(fact, str) else fact for name, fact in facts.items()
        }
        self.actions: tuple[Action, ...] = ()

    def attach_actions(self, actions: Iterable[Action]) -> None:
        """Attach suggested fixes, also to the facts, so that other processes get them."""
        self.actions = tuple(actions)
        self.facts = {**self.facts, "actions": to_json(self.actions)}

    @property
    def message(self) -> Message:
        """Title and hint in one message."""
        return join_messages(self.title, self.hint)

    def __str__(self) -> str:
        return self.message


class BadOption(LauncherError):
    """The value of an option is invalid."""

    code = "bad_option"


class HomeUnusable(LauncherError):
    """A folder that the program writes to cannot be used."""

    code = "home_unusable"


class FolderNotOurs(HomeUnusable):
    """A folder for keys belongs to another user."""

    code = "folder_not_ours"


class ModelMissing(LauncherError):
    """The model file does not exist or cannot be read."""

    code = "model_missing"


class ModelUnknown(LauncherError):
    """The catalogue has no such model, or the model has no such file."""

    code = "model_unknown"


class ModelBroken(LauncherError):
    """The file is not a GGUF, is truncated, or has an invalid header."""

    code = "model_broken"


class ModelReplaced(LauncherError):
    """The file on the hub differs from the catalogue's entry or from the local file."""

    code = "model_replaced"


class ModelUnexpected(LauncherError):
    """The file arrived intact, but it is not the expected model."""

    code = "model_unexpected"


class NothingFits(LauncherError):
    """No file of a model fits the machine."""

    code = "nothing_fits"


class ModelInUse(LauncherError):
    """A running server uses the file."""

    code = "model_in_use"


class ModelHasNoHead(LauncherError):
    """MTP was requested for a file without an MTP head."""

    code = "model_has_no_mtp_head"


class ModelWritesNoText(LauncherError):
    """Text was requested from an embedding model."""

    code = "model_writes_no_text"


class GeometryUnknown(LauncherError):
    """A model's header lacks values that the memory estimate needs."""

    code = "geometry_unknown"


class GpuAsleep(LauncherError):
    """The GPU is in a sleep state and was not woken to read it."""

    code = "gpu_asleep"


class CpuUnsupported(LauncherError):
    """The CPU lacks an instruction set that the engine needs."""

    code = "cpu_unsupported"


class HostUnreadable(LauncherError):
    """The system does not report required facts about this computer."""

    code = "host_unreadable"


class LibraryMissing(LauncherError):
    """A system library is missing."""

    code = "library_missing"


class EngineMissing(LauncherError):
    """The engine does not exist or cannot be started."""

    code = "engine_missing"


class EngineUnsuitable(LauncherError):
    """The engine runs but cannot do what was requested, for example because it lacks a flag."""

    code = "engine_unsuitable"


class EngineBusy(LauncherError):
    """Another process uses the engine or the engine store."""

    code = "engine_busy"


class PortBusy(LauncherError):
    """Another program listens on the port."""

    code = "port_busy"


class GpuUnseen(LauncherError):
    """The engine does not detect the GPU that it was chosen for."""

    code = "gpu_unseen"


class EngineFailed(LauncherError):
    """The engine exited or stopped responding, before or while it served."""

    code = "engine_failed"


class EngineHung(EngineFailed):
    """The engine process runs but makes no progress."""

    code = "engine_hung"


class EngineBroken(EngineFailed):
    """The engine process runs but fails every request."""

    code = "engine_broken"


class CrashLoop(EngineFailed):
    """The engine crashed repeatedly, so it is not restarted. `reason` is the last crash."""

    code = "crash_loop"

    def __init__(self, crashes: int, seconds: float, reason: LauncherError) -> None:
        super().__init__(
            message(
                "The engine crashed {crashes} times within {seconds} s, so it was not restarted. Last crash: {reason}",
                crashes=crashes,
                seconds=max(1, round(seconds)),
                reason=reason.title,
            ),
            reason.hint,
            **(dict(reason.facts) | {"crashes": crashes, "reason": reason.code}),
        )
        self.reason = reason
        self.actions = reason.actions


class SettingsFailed(LauncherError):
    """A server did not start with new settings and runs with the old ones again. `reason` is the cause."""

    code = "settings_failed"

    def __init__(self, reason: LauncherError) -> None:
        super().__init__(
            join_messages(
                message("The server did not start with the new settings, so the previous ones were restored."),
                reason.title,
            ),
            reason.hint,
            **(dict(reason.facts) | {"reason": reason.code}),
        )
        self.reason = reason
        self.actions = reason.actions


class TwinImpossible(LauncherError):
    """The sparse file for asking the engine about memory cannot be created."""

    code = "twin_impossible"


class DraftsInert(LauncherError):
    """The engine runs but drafts nothing, although MTP was requested."""

    code = "drafts_inert"


class ActionImpossible(LauncherError):
    """A suggested fix cannot be applied by changing settings."""

    code = "action_impossible"


class Superseded(LauncherError):
    """A newer request to the same server took this one's place."""

    code = "superseded"


class GaveWay(LauncherError):
    """A measurement's request was ended, or not begun, because a client uses the server."""

    code = GAVE_WAY


class ServerNotFound(LauncherError):
    """No running server matches."""

    code = "server_not_found"


class SeveralServers(LauncherError):
    """More than one running server matches."""

    code = "several_servers"


class Unreachable(LauncherError):
    """A server did not answer, or the connection broke off. `retry_helps` is whether it may answer later."""

    code = "unreachable"
    retry_helps = True


class Untrusted(Unreachable):
    """A server cannot prove its identity."""

    code = "untrusted"
    retry_helps = False


class ProxyUnusable(Unreachable):
    """The proxy set in the environment cannot be used as it is."""

    code = "proxy_unusable"
    retry_helps = False


class NotOurEngine(Untrusted):
    """Another program listens on the port of a registered server."""

    code = "not_our_engine"


class ControlRefused(LauncherError):
    """A control request came from another user or without the right token."""

    code = "control_refused"


class Refused(LauncherError):
    """A server answered with an error. `wait_s` is the requested pause in seconds, None if it names none."""

    code = "refused"

    def __init__(
        self, title: str, hint: str = "", *, status: int | None = None, wait_s: float | None = None, **facts: object
    ) -> None:
        super().__init__(title, hint, status=status, **facts)
        self.status = status
        self.wait_s = wait_s


class RateLimited(Refused):
    """A server rejects requests from this address for some time."""

    code = "rate_limited"


class Offline(LauncherError):
    """The network is needed, but the user has switched it off."""

    code = "offline"


class DownloadBroken(LauncherError):
    """The downloaded data does not match the expected file. It is kept as .bad and never used."""

    code = "download_broken"


class DiskFull(LauncherError):
    """The disk has no room for a file. The part that has arrived is kept."""

    code = "disk_full"


class DownloadBusy(LauncherError):
    """Another process downloads the same file to the same path."""

    code = "download_busy"


class FileInTheWay(LauncherError):
    """The target name is taken by a file that does not belong to this program."""

    code = "file_in_the_way"


class JobUnknown(LauncherError):
    """The download queue has no such job."""

    code = "job_unknown"


class WrittenByNewer(LauncherError):
    """A file of this program was written by a newer version."""

    code = "written_by_newer"


class TargetUnusable(LauncherError):
    """The target path cannot be written."""

    code = "target_unusable"


class ConversationsUnusable(LauncherError):
    """The conversation database cannot be read or written."""

    code = "conversations_unusable"


class ConversationMissing(LauncherError):
    """No conversation matches the ID prefix, or several do."""

    code = "conversation_missing"


class HistoryUnusable(LauncherError):
    """The measurement history cannot be read or written."""

    code = "history_unusable"


class ResultMissing(LauncherError):
    """No measurement matches the ID prefix, or several do."""

    code = "result_missing"


class ResultUnreadable(LauncherError):
    """A file is not a measurement or preset of this program."""

    code = "result_unreadable"


class TuneMismatch(LauncherError):
    """A tune cannot be resumed: the saved state is of another tune or unreadable."""

    code = "tune_mismatch"


class NothingMeasured(LauncherError):
    """None of the requested measurements succeeded."""

    code = "nothing_measured"
