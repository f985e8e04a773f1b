"""Detects that the engine fails every request for a reply, although its health check passes."""

from math import log2

from launcher.base.action import Action, ActionKind
from launcher.base.messages import message
from launcher.engine.diagnosis.explain import add_cause, diagnose_reply_error
from launcher.engine.server.state import MOST_FAILED_REPLIES, FailedReplies
from launcher.monitor.health_event import CheckResult, Finding, FindingCode, FindingLevel, Moment


class FailingRepliesDetector:
    """Detects clients' requests that fail one after another.

    If the engine refuses them for what they ask, that is information: other requests may well be answered.
    """

    def check(self, moment: Moment) -> CheckResult:
        """See `Detector.check` in health_event.py."""
        failed = moment.failed_replies
        if failed is None:
            return None
        if not failed.total:
            return False
        return _make_finding(failed) if failed.total >= MOST_FAILED_REPLIES else None


def _make_finding(failed: FailedReplies) -> Finding:
    found = diagnose_reply_error(failed.message)
    all_refused = failed.refused == failed.total
    evidence: dict[str, float | str] = {"requests_failed": float(failed.total), "message": failed.message}
    if failed.status is not None:
        evidence["http_status"] = float(failed.status)
    restart = Action(ActionKind.RESTART, message("Restart the server"))
    return Finding(
        FindingCode.REPLIES_FAIL,
        add_cause(failed.sentence, found),
        evidence,
        restart if not all_refused else found.actions[0] if found is not None else None,
        FindingLevel.INFORMATION if all_refused else FindingLevel.WARNING,
        stage=int(log2(failed.total)),
    )
