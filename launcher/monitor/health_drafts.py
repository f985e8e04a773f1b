"""Drafts that are not made, or no longer accepted; and requests that wait."""

from collections import deque
from statistics import median

from launcher.base.words import part
from launcher.engine.action import Action, ActionKind
from launcher.monitor.health_event import Code, Finding, Level, Moment, Setup

_WINDOW_DRAFTS, _WINDOW_REPLIES = 600, 4
_USUAL_WINDOWS = 3
_COLLAPSED, _RECOVERED = 0.55, 0.75
_FLOOR, _NEVER_GOOD = 0.10, 0.50
"""What is too low where no acceptance was published for a model; and the share of the lowest published one that is."""
_INERT_REPLIES, _INERT_TOKENS = 3, 200
_LEAST_TOKENS = 32


class AcceptanceLow:
    """Acceptance that collapsed against what this server had, or that is far below what was published for the model.

    Content moves acceptance by far more than chance does: published results for one model lie between 0.5 and
    0.95. So it takes hundreds of drafts over several replies, and a fall to about half.
    """

    def __init__(self, setup: Setup) -> None:
        self._setup = setup
        self._window: deque[tuple[int, int]] = deque()
        self._windows: list[float] = []

    def look(self, moment: Moment) -> Finding | bool | None:
        """See Detector."""
        if not self._setup.draft:
            return None
        drafts = [(each.drafted, each.accepted or 0) for each in moment.finished if each.drafted]
        self._window.extend(drafts)
        drafted = sum(each for each, _ in self._window)
        if not drafts or drafted < _WINDOW_DRAFTS or len(self._window) < _WINDOW_REPLIES:
            return None
        while len(self._window) > _WINDOW_REPLIES and drafted - self._window[0][0] >= _WINDOW_DRAFTS:
            drafted -= self._window.popleft()[0]
        rate = sum(each for _, each in self._window) / drafted
        if len(self._windows) < _USUAL_WINDOWS:
            self._windows.append(rate)
            self._window.clear()
        usual = median(self._windows) if len(self._windows) == _USUAL_WINDOWS else None
        return self._judge(rate, drafted, usual)

    def _judge(self, rate: float, drafted: int, usual: float | None) -> Finding | bool | None:
        published = self._setup.usual_acceptance
        lowest = _NEVER_GOOD * published if published is not None else _FLOOR
        fallen = usual is not None and rate < _COLLAPSED * usual
        if not fallen and rate >= lowest:
            return False if usual is None or rate > _RECOVERED * usual else None
        evidence: dict[str, float | str] = {"acceptance_percent": 100 * rate, "draft_n": float(drafted)}
        if fallen and usual is not None:
            evidence["usual_acceptance_percent"] = 100 * usual
            against = part(f"{100 * usual:.0f} % were usual here")
        elif published is not None:
            evidence["published_acceptance_percent"] = 100 * published
            against = part(f"the lowest published for this model is {100 * published:.0f} %")
        else:
            against = part("drafting then costs more than it gains")
        return Finding(
            Code.ACCEPTANCE_LOW,
            f"Only {100 * rate:.0f} % of the last {drafted} drafted tokens were accepted; {against}.",
            evidence,
            _shorter(self._setup.draft),
        )


def _shorter(draft: int) -> Action:
    if draft > 1:
        return Action(ActionKind.SHORTER_DRAFT, f"Draft {draft - 1} instead of {draft}", {"draft": draft - 1})
    return Action(ActionKind.DRAFT_OFF, "Switch MTP off")


class DraftsInertNow:
    """MTP is on, but replies are made without a single draft, although the first request after the start had some.

    One reply may well have none (an image, the context's very end), so it takes several, and enough tokens.
    """

    def __init__(self, setup: Setup) -> None:
        self._setup = setup
        self._replies = 0
        self._tokens = 0

    def look(self, moment: Moment) -> Finding | bool | None:
        """See Detector."""
        if not self._setup.draft:
            return None
        for reply in moment.finished:
            if reply.drafted:
                self._replies = self._tokens = 0
                return False
            if reply.drafted is not None and reply.predicted_n >= _LEAST_TOKENS:
                self._replies += 1
                self._tokens += reply.predicted_n
        if self._replies < _INERT_REPLIES or self._tokens < _INERT_TOKENS:
            return None
        return Finding(
            Code.DRAFTS_INERT,
            f"MTP is on, but the last {self._replies} replies ({self._tokens} tokens) came without a single draft.",
            {"replies": float(self._replies), "predicted_n": float(self._tokens), "draft_n": 0.0},
            Action(ActionKind.RESTART, "Restart the server"),
        )


class RequestsWait:
    """Requests that wait because all slots are taken: they are answered one after the other."""

    def __init__(self, setup: Setup) -> None:
        self._slots = setup.slots

    def look(self, moment: Moment) -> Finding | bool | None:
        """See Detector."""
        if moment.waiting is None:
            return None
        if not moment.waiting:
            return False
        slots = min(self._slots + moment.waiting, 2 * self._slots)
        return Finding(
            Code.REQUESTS_WAIT,
            f"{moment.waiting} request(s) wait for one of {self._slots} slot(s). More slots answer them at once; they"
            " share the context, and each stream is slower.",
            {"requests_waiting": float(moment.waiting), "slots": float(self._slots)},
            Action(ActionKind.MORE_SLOTS, f"Use {slots} slots", {"slots": slots}),
            Level.INFORMATION,
        )
