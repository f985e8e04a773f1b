"""Health detectors of a running server, and the class that runs them all, each with its hysteresis."""

from collections import deque
from dataclasses import dataclass
from math import floor, log2
from statistics import median

from launcher.base.action import Action, ActionKind
from launcher.base.messages import enumerate_texts, join_messages, message, plural_message
from launcher.engine.server.reread import Reread, RereadCause
from launcher.machine.gpu import GpuProcess
from launcher.models.drafters import is_drafting
from launcher.monitor.failing_replies import FailingRepliesDetector
from launcher.monitor.health_event import (
    CheckResult,
    Finding,
    FindingCode,
    FindingLevel,
    FinishedReply,
    HealthEvent,
    Latch,
    Moment,
    ServerSetup,
)
from launcher.monitor.host_memory import HostMemoryDetector
from launcher.monitor.processor import BusyProcessorDetector

# Drafts that are not made or rarely accepted, and requests that wait.

_WINDOW_DRAFTS, _WINDOW_REPLIES = 600, 4
"""The fewest drafted tokens and replies over which acceptance is judged."""
_FIRST_RATES = 3
"""Number of acceptance rates, each of different replies after the start, whose median is the usual acceptance."""
_COLLAPSED, _RECOVERED = 0.55, 0.75
"""Shares of the usual acceptance below which the finding is raised, and above which it is cleared."""
_LOW_ACCEPTANCE, _LOW_SHARE_OF_PUBLISHED = 0.10, 0.50
"""Limits of a low acceptance: absolute if none is published for the model, else as a share of the lowest published."""
_INERT_REPLIES, _INERT_TOKENS = 3, 200
"""The fewest replies in a row without a draft, and tokens in them, that count."""
_LEAST_TOKENS = 32
"""Shorter replies without drafts do not count."""


class LowAcceptanceDetector:
    """Detects a draft acceptance that collapsed, or that is far below the published values for the model.

    Acceptance depends strongly on the text: published results for one model are from about 0.5 to 0.95. So it takes
    hundreds of drafts over several replies, and a drop to about half.
    """

    def __init__(self, setup: ServerSetup) -> None:
        self._setup = setup
        self._last_replies: deque[tuple[int, int]] = deque()
        """Drafted and accepted tokens of the replies that are judged."""
        self._first_rates: list[float] = []

    def check(self, moment: Moment) -> CheckResult:
        """See `Detector.check` in health_event.py."""
        if not is_drafting(self._setup.draft):
            return None
        new_replies = [(each.drafted, each.accepted or 0) for each in moment.finished if each.drafted]
        self._last_replies.extend(new_replies)
        drafted = sum(tokens for tokens, _ in self._last_replies)
        if not new_replies or drafted < _WINDOW_DRAFTS or len(self._last_replies) < _WINDOW_REPLIES:
            return None
        while len(self._last_replies) > _WINDOW_REPLIES and drafted - self._last_replies[0][0] >= _WINDOW_DRAFTS:
            drafted -= self._last_replies.popleft()[0]
        rate = sum(tokens for _, tokens in self._last_replies) / drafted
        if len(self._first_rates) < _FIRST_RATES:
            self._first_rates.append(rate)
            self._last_replies.clear()
        usual = median(self._first_rates) if len(self._first_rates) == _FIRST_RATES else None
        return self._judge_rate(rate, drafted, usual)

    def _judge_rate(self, rate: float, drafted: int, usual: float | None) -> CheckResult:
        published = self._setup.published_acceptance
        lowest = _LOW_SHARE_OF_PUBLISHED * published if published is not None else _LOW_ACCEPTANCE
        collapsed = usual is not None and rate < _COLLAPSED * usual
        if not collapsed and rate >= lowest:
            return False if usual is None or rate > _RECOVERED * usual else None
        evidence: dict[str, float | str] = {"acceptance_percent": 100 * rate, "draft_n": float(drafted)}
        if collapsed and usual is not None:
            evidence["usual_acceptance_percent"] = 100 * usual
            against = message("usually {usual:.0f} % here", usual=100 * usual)
        elif published is not None:
            evidence["published_acceptance_percent"] = 100 * published
            against = message("the lowest published for this model is {published:.0f} %", published=100 * published)
        else:
            against = message("at this rate drafting costs more than it gains")
        return Finding(
            FindingCode.ACCEPTANCE_LOW,
            message(
                "Only {rate:.0f} % of the last {drafted} drafted tokens were accepted; {against}.",
                rate=100 * rate,
                drafted=drafted,
                against=against,
            ),
            evidence,
            _shorten_draft(self._setup.draft),
        )


def _shorten_draft(draft: int) -> Action:
    if draft > 1:
        return Action(
            ActionKind.SHORTER_DRAFT,
            message("Draft {draft} instead of {before}", draft=draft - 1, before=draft),
            {"draft": draft - 1},
        )
    return Action(ActionKind.DRAFT_OFF, message("Switch MTP off"))


class InertDraftsDetector:
    """Detects replies without any draft although MTP is on. (The supervisor checks that there are some at the start.)

    A single reply may have none for a good reason (an image, the end of the context), so it takes several replies with
    enough tokens.
    """

    def __init__(self, setup: ServerSetup) -> None:
        self._setup = setup
        self._replies = 0
        self._tokens = 0

    def check(self, moment: Moment) -> CheckResult:
        """See `Detector.check` in health_event.py."""
        if not is_drafting(self._setup.draft):
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
            FindingCode.DRAFTS_INERT,
            message(
                "MTP is on, but the last {replies} replies ({tokens} tokens) had no drafted tokens.",
                replies=self._replies,
                tokens=self._tokens,
            ),
            {"replies": float(self._replies), "predicted_n": float(self._tokens), "draft_n": 0.0},
            Action(ActionKind.RESTART, message("Restart the server")),
        )


class WaitingRequestsDetector:
    """Detects requests that wait because all slots are busy."""

    def __init__(self, setup: ServerSetup) -> None:
        self._slots = setup.slots

    def check(self, moment: Moment) -> CheckResult:
        """See `Detector.check` in health_event.py."""
        if moment.waiting is None:
            return None
        if not moment.waiting:
            return False
        slots = min(self._slots + moment.waiting, 2 * self._slots)
        return Finding(
            FindingCode.REQUESTS_WAIT,
            message(
                "{requests}: {busy}. More slots process them at the same time, but share the context and "
                "slow each reply down.",
                requests=plural_message("{n} request is waiting", "{n} requests are waiting", moment.waiting),
                busy=plural_message("the only slot is busy", "all {n} slots are busy", self._slots),
            ),
            {"requests_waiting": float(moment.waiting), "slots": float(self._slots)},
            Action(ActionKind.MORE_SLOTS, message("Use {slots} slots", slots=slots), {"slots": slots}),
            FindingLevel.INFORMATION,
        )


# Prompts that are read again.

_LAST_PROMPTS = 5
_OFTEN = 2
_MUCH_TOKENS = 8_192
"""Tokens read again by one prompt that raise the finding at once; fewer must be lost `_OFTEN` times."""
_GOOD_PROMPTS = 3
"""Requests in a row without a loss, after which the finding is cleared."""


class RereadPromptsDetector:
    """Detects prompts that the engine reads although it has read most of them before."""

    def __init__(self, setup: ServerSetup) -> None:
        self._slots, self._cache_mib = setup.slots, setup.cache_mib
        self._last: deque[Reread | None] = deque(maxlen=_LAST_PROMPTS)

    def check(self, moment: Moment) -> CheckResult:
        """See `Detector.check` in health_event.py."""
        if not moment.prompts:
            return None
        self._last.extend(moment.prompts)
        lost = [each for each in self._last if each is not None]
        tokens = sum(each.tokens for each in lost)
        if len(lost) < _OFTEN and tokens < _MUCH_TOKENS:
            recent = list(self._last)[-_GOOD_PROMPTS:]
            return False if len(recent) == _GOOD_PROMPTS and not any(recent) else None
        last = lost[-1]
        seconds = sum(each.seconds or 0.0 for each in lost)
        evidence: dict[str, float | str] = {"tokens": float(tokens), "lost_s": seconds, "cause": last.cause.value}
        if last.place:
            evidence["place"] = last.place
        sentence = message(
            "{tokens:,} tokens of the last prompts were read again, {seconds:.0f} s lost.",
            tokens=tokens,
            seconds=seconds,
        )
        return Finding(
            FindingCode.PROMPT_READ_AGAIN,
            join_messages(sentence, last.explanation),
            evidence,
            self._suggest_fix(last, moment),
        )

    def _suggest_fix(self, last: Reread, moment: Moment) -> Action | None:
        host_left_mib = moment.value("host_memory_left_mib") or 0.0
        match last.cause:
            case RereadCause.OTHER_CLIENT:
                slots = 2 * self._slots
                return Action(ActionKind.MORE_SLOTS, message("Use {slots} slots", slots=slots), {"slots": slots})
            case RereadCause.CACHE_LIMIT if 0 < self._cache_mib < host_left_mib / 2:
                larger = 2 * self._cache_mib
                label = message("Allow {mib:,} MiB of prompt cache", mib=larger)
                return Action(ActionKind.LARGER_CACHE, label, {"cache_ram": larger})
        return None


class UnkeptConversationsDetector:
    """Detects that conversations cannot be kept on disk."""

    def check(self, moment: Moment) -> CheckResult:
        """See `Detector.check` in health_event.py."""
        return moment.kept_problem != "" and Finding(
            FindingCode.NOTHING_KEPT,
            message(
                "Conversations are not kept on disk: {why}. They will be read again after the model was unloaded.",
                why=moment.kept_problem,
            ),
            {"message": moment.kept_problem},
            level=FindingLevel.INFORMATION,
        )


class AdviceDetector:
    """Passes on what the counts of use advise."""

    def check(self, moment: Moment) -> CheckResult:
        """See `Detector.check` in health_event.py."""
        return moment.advice or False


# GPU problems: throttling, other programs in its memory, and a model that does not run on it.

# NVML's throttle reasons, as named in machine.nvidia. NVML reports a hardware slowdown together with its cause, so HOT
# is checked before HARDWARE.
HOT = frozenset({"temperature (driver)", "temperature (hardware)"})
HARDWARE = frozenset({"hardware slowdown", "power brake"})
POWER = frozenset({"power limit"})

Evidence = dict[str, float | str]

_MIB = 2**20
_POWER_CLOCK_SHARE, _HEAT_CLOCK_SHARE = 0.75, 0.92
"""Shares of the highest clock below which a power limit is reported, and below which heat is a warning."""
_RAISE_FREE_MIB, _CLEAR_FREE_MIB = 256.0, 512.0
"""Free VRAM below which the finding is raised, and above which it is cleared."""
_TAKEN_MIB = 256.0
"""The least growth of other programs' memory since the model was loaded that counts."""
_MOST_NAMES = 2
"""The most programs that are named in a sentence."""


class ThrottlingDetector:
    """Detects clocks that are throttled while the GPU works, from the reasons that NVML reports.

    A power limit is the normal state of a GPU under load. It is reported, as information, only if the clock is a
    quarter below the highest one since the server's start.
    """

    def __init__(self, code: FindingCode) -> None:
        self._code = code
        self._best_mhz = 0.0

    def check(self, moment: Moment) -> CheckResult:
        """See `Detector.check` in health_event.py."""
        reasons = moment.activity.throttled_by
        if reasons is None or not moment.generating:
            return None
        clock = moment.value("gpu_clock_mhz")
        self._best_mhz = max(self._best_mhz, clock or 0.0)
        if self._find_cause(frozenset(reasons)) is not self._code:
            return False
        if self._code is FindingCode.THROTTLED_POWER and (clock is None or clock > _POWER_CLOCK_SHARE * self._best_mhz):
            return None if clock is None else False
        names = ("gpu_temperature_c", "gpu_clock_mhz", "gpu_power_w", "gpu_power_limit_w")
        figures = {name: value for name in names if (value := moment.value(name)) is not None}
        evidence: Evidence = {**figures, "highest_gpu_clock_mhz": self._best_mhz, "reasons": ", ".join(reasons)}
        return self._make_finding(moment, evidence, _describe_clocks(clock, self._best_mhz))

    @staticmethod
    def _find_cause(reasons: frozenset[str]) -> FindingCode | None:
        if reasons & HOT:
            return FindingCode.THROTTLED_HOT
        if reasons & HARDWARE:
            return FindingCode.THROTTLED_HARDWARE
        return FindingCode.THROTTLED_POWER if reasons & POWER else None

    def _make_finding(self, moment: Moment, evidence: Evidence, clocks: str) -> Finding:
        temperature = moment.value("gpu_temperature_c")
        if self._code is FindingCode.THROTTLED_HOT:
            at = message(" at {temperature:.0f} °C", temperature=temperature) if temperature is not None else ""
            cool = Action(ActionKind.IMPROVE_COOLING, message("Clean the fans and check the airflow"))
            sentence = message("The GPU slows down because it is too hot{at}{clocks}.", at=at, clocks=clocks)
            return Finding(self._code, sentence, evidence, cool, self._heat_level(moment))
        if self._code is FindingCode.THROTTLED_HARDWARE:
            check = Action(ActionKind.IMPROVE_COOLING, message("Check the power cables and the cooling"))
            sentence = message(
                "The GPU protects itself and slows down: power supply or cooling is insufficient{clocks}.",
                clocks=clocks,
            )
            return Finding(self._code, sentence, evidence, check)
        if moment.on_battery:
            sentence = message("On battery the GPU gets less power{clocks}.", clocks=clocks)
            plug = Action(ActionKind.PLUG_IN, message("Plug in the charger"))
            return Finding(self._code, sentence, evidence, plug, FindingLevel.INFORMATION)
        limit = moment.value("gpu_power_limit_w")
        watts = message(" of {limit:.0f} W", limit=limit) if limit is not None else ""
        sentence = message("The power limit{watts} holds the GPU back{clocks}.", watts=watts, clocks=clocks)
        return Finding(self._code, sentence, evidence, None, FindingLevel.INFORMATION)

    def _heat_level(self, moment: Moment) -> FindingLevel:
        """Return the severity of thermal throttling.

        A laptop's driver may hold a temperature limit all day. That is a warning only if the clock falls noticeably.
        """
        clock = moment.value("gpu_clock_mhz")
        by_hardware = "temperature (hardware)" in (moment.activity.throttled_by or ())
        slower = clock is None or clock < _HEAT_CLOCK_SHARE * self._best_mhz
        return FindingLevel.WARNING if by_hardware or slower else FindingLevel.INFORMATION


def _describe_clocks(now: float | None, best: float) -> str:
    if now is None or best <= now:
        return ""
    return message(": {now:.0f} MHz instead of {best:.0f} MHz", now=now, best=best)


class VramPressureDetector:
    """Detects other programs that took GPU memory after the model was loaded, so that hardly any is left.

    llama-server allocates its memory at its start, so later growth is due to other programs. Their share is exact if
    NVML reports the memory of each program, else inferred.
    """

    def __init__(self, setup: ServerSetup) -> None:
        self._setup = setup
        self._first_others_mib: float | None = None
        self._first_used_mib: float | None = None
        """Memory of other programs and of all programs at the first check, when the model has just been loaded."""

    def check(self, moment: Moment) -> CheckResult:
        """See `Detector.check` in health_event.py."""
        used, total = moment.value("vram_used_mib"), self._setup.vram_total_mib
        if used is None or total is None:
            return None
        others = self._others_memory(moment.activity.processes)
        if self._first_used_mib is None:
            self._first_used_mib, self._first_others_mib = used, others
        exact = others is not None and self._first_others_mib is not None
        taken = (others or 0) - (self._first_others_mib or 0) if exact else used - self._first_used_mib
        free = total - used
        if free > _CLEAR_FREE_MIB or taken < _TAKEN_MIB / 2:
            return False
        if free > _RAISE_FREE_MIB or taken < _TAKEN_MIB:
            return None
        programs = self._program_names(moment.activity.processes)
        mib, left = f"{taken:.0f} MiB", f"{max(free, 0):.0f} MiB"
        if exact:
            by = programs or message("Other programs")
            sentence = message(
                "{by} took {mib} of GPU memory since the model was loaded; {left} left.", by=by, mib=mib, left=left
            )
        else:
            sentence = message(
                "Other programs probably took {mib} of GPU memory since the model was loaded; {left} left.",
                mib=mib,
                left=left,
            )
        if programs and not exact:
            sentence = join_messages(sentence, message("Programs on the GPU: {who}.", who=programs))
        return Finding(
            FindingCode.VRAM_PRESSURE,
            sentence,
            {"vram_free_mib": free, "vram_taken_by_others_mib": taken, "programs": programs or "unknown"},
            Action(ActionKind.FREE_MEMORY, message("Close the programs that use the GPU's memory")),
        )

    def _others_memory(self, processes: tuple[GpuProcess, ...] | None) -> float | None:
        """Return the memory of all programs but the engine, in MiB; None unless the engine's is known, too."""
        engine = _find_engine(processes, self._setup.engine_pid)
        if engine is None or engine.used_bytes is None:
            return None
        return sum(each.used_bytes or 0 for each in processes or () if each is not engine) / _MIB

    def _program_names(self, processes: tuple[GpuProcess, ...] | None) -> str:
        others = [each for each in processes or () if each.pid != self._setup.engine_pid and each.name]
        others.sort(key=lambda each: -(each.used_bytes or 0))
        names = list(dict.fromkeys(each.name or "" for each in others))[:_MOST_NAMES]
        return enumerate_texts(names)


def _find_engine(processes: tuple[GpuProcess, ...] | None, pid: int | None) -> GpuProcess | None:
    """Return the engine's entry. None in a container, where process ids are the host's and entries have no names."""
    return next((each for each in processes or () if each.pid == pid and each.name is not None), None)


class UnusedGpuDetector:
    """Detects a GPU build that runs on the CPU, or a model on the GPU by the log, but not by the memory in use.

    Undecided if neither log nor driver is conclusive: WDDM, WSL and containers hide the memory of a process.
    """

    def __init__(self, setup: ServerSetup) -> None:
        self._setup = setup

    def check(self, moment: Moment) -> CheckResult:
        """See `Detector.check` in health_event.py."""
        setup = self._setup
        if setup.expects_gpu and setup.on_gpu is False:
            why = message("it found no GPU") if setup.sees_gpu is False else message("it loaded no layer onto it")
            evidence: Evidence = {"gpus_seen": "none" if setup.sees_gpu is False else "some", "layers_on_gpu": "none"}
            return self._make_finding(
                message("The engine is a GPU build but runs on the CPU: {why}.", why=why), evidence
            )
        if not setup.on_gpu or not setup.weights_mib:
            return None if setup.expects_gpu is None else False
        taken = self._memory_in_use(moment)
        if taken is None:
            return None
        if taken > setup.weights_mib / 2:
            return False
        return self._make_finding(
            message(
                "The engine reports {weights_mib:.0f} MiB of the model on the GPU, but only {taken:.0f} MiB "
                "of GPU memory are in use.",
                weights_mib=setup.weights_mib,
                taken=taken,
            ),
            {"weights_mib": setup.weights_mib, "vram_used_mib": taken},
        )

    def _memory_in_use(self, moment: Moment) -> float | None:
        """Return the engine's GPU memory in MiB, else that of all programs together."""
        counted = moment.value("engine_vram_mib")
        if counted is not None:
            return counted
        engine = _find_engine(moment.activity.processes, self._setup.engine_pid)
        if engine is None or engine.used_bytes is None:
            return moment.value("vram_used_mib")
        return engine.used_bytes / _MIB

    @staticmethod
    def _make_finding(sentence: str, evidence: Evidence) -> Finding:
        return Finding(
            FindingCode.GPU_UNUSED,
            sentence,
            evidence,
            Action(ActionKind.OTHER_ENGINE_BUILD, message("Install the build that suits this GPU and driver")),
        )


# Falling speed. Only comparable replies are compared.
#
# A reply's tokens/s vary for two harmless reasons: the draft acceptance of its text, and the context in use. The first
# is removed by counting verification steps, which take equally long whether their drafts are accepted or not: steps =
# tokens - accepted drafts. The second matters: an RTX 5060 Ti falls from 123 t/s at 10K to 82 t/s at 55K. It is removed
# by comparing only replies of the same class of context in use; a class ends at 1.41 times its beginning. Replies with
# parallel streams are compared only with each other; replies while other programs used the processor are not compared.

_FEWEST_TOKENS = 32
_SHORTEST_S = 0.1
"""Shorter replies are not compared."""
_MOST_OTHERS_PERCENT = 25.0
"""Nor are replies during which other programs used more of the processor."""
_FIRST_REPLIES = 6
"""Replies of one kind whose median is its usual speed."""
_LAST_REPLIES, _NEWEST_REPLIES = 5, 3
"""The fewest replies to compare with the usual speed. The message has the speed of the newest three of them."""
_RECENT_S, _LAST_S, _LEAST_SPAN_S = 60.0, 600.0, 30.0
"""Seconds. All replies of the last minute are compared, or the last five within ten minutes if there are fewer; they
must span half a minute."""
_LEAST_CONTEXT_USED = 256
"""Up to this context in use, in tokens, all replies are in one class."""
_SLOW, _FINE = 0.70, 0.85
"""Shares of the usual speed up to which the finding is raised, and above which it is cleared."""

_Kind = tuple[int, int, bool]
"""Class of context in use, number of streams, and whether there were drafts."""


@dataclass(frozen=True, slots=True)
class SpeedComparison:
    """The speed of the last replies compared with the usual speed, in verification steps per second.

    `ratio` is the median over all compared replies; 1 is as fast as usual. `latest`, for the message, is the median of
    the newest three.
    """

    ratio: float
    latest: float
    usual_per_s: float
    now_per_s: float
    replies: int
    span_s: float


@dataclass(frozen=True, slots=True)
class _ComparedReply:
    time_s: float
    ratio: float
    rate: float


class SpeedHistory:
    """Records the speed of this server's replies by kind, and compares the last ones with the first ones."""

    def __init__(self) -> None:
        self.compared = 0
        self.too_short = 0
        self.disturbed = 0
        self._first: dict[_Kind, list[float]] = {}
        self._last: deque[_ComparedReply] = deque(maxlen=1_000)

    def add(self, time_s: float, reply: FinishedReply) -> None:
        """Add a reply that ended at `time_s`."""
        if reply.predicted_n < _FEWEST_TOKENS or reply.predicted_s < _SHORTEST_S or reply.context_used is None:
            self.too_short += 1
            return
        if reply.others_percent is not None and reply.others_percent > _MOST_OTHERS_PERCENT:
            self.disturbed += 1
            return
        steps = reply.predicted_n - (reply.accepted or 0)
        if steps <= 0:  # accepted drafts count even if the end of the reply cut them off
            self.too_short += 1
            return
        rate = steps / reply.predicted_s
        context_class = floor(2 * log2(max(reply.context_used, _LEAST_CONTEXT_USED) / _LEAST_CONTEXT_USED))
        first = self._first.setdefault((context_class, reply.streams, bool(reply.drafted)), [])
        if len(first) < _FIRST_REPLIES:
            first.append(rate)
            return
        self.compared += 1
        self._last.append(_ComparedReply(time_s, rate / median(first), rate))

    def drop_last_replies(self) -> None:
        """Drop the last replies, so that only later ones are compared. The usual speed stays."""
        self._last.clear()

    def compare(self, now_s: float) -> SpeedComparison | None:
        """Compare the last replies with the usual speed; None if there are too few."""
        known = [each for each in self._last if now_s - each.time_s <= _LAST_S]
        recent = [each for each in known if now_s - each.time_s <= _RECENT_S]
        if len(recent) < _LAST_REPLIES:
            recent = known[-_LAST_REPLIES:]
        if len(recent) < _LAST_REPLIES:
            return None
        newest = recent[-_NEWEST_REPLIES:]
        latest, rate = median(each.ratio for each in newest), median(each.rate for each in newest)
        span_s = recent[-1].time_s - recent[0].time_s
        return SpeedComparison(median(each.ratio for each in recent), latest, rate / latest, rate, len(recent), span_s)


class FallingSpeedDetector:
    """Detects replies that became much slower. Health does not run it while another finding explains the slowness."""

    def __init__(self, speed: SpeedHistory) -> None:
        self._speed = speed
        self._since_s: float | None = None

    def check(self, moment: Moment) -> CheckResult:
        """See `Detector.check` in health_event.py."""
        if self._since_s is None:
            self._since_s = moment.time_s
        if not moment.finished:
            return None
        now = self._speed.compare(moment.time_s)
        if now is None or now.span_s < _LEAST_SPAN_S:
            return None
        if now.ratio > _FINE:
            return False
        if now.ratio > _SLOW:
            return None
        minutes = (moment.time_s - self._since_s) / 60
        return Finding(
            FindingCode.SPEED_FALLING,
            message(
                "Replies are {latest:.1f} times slower than this server's first ones at the same context: "
                "{now_per_s:.1f} steps/s now, {usual_per_s:.1f} steps/s then.",
                latest=1 / now.latest,
                now_per_s=now.now_per_s,
                usual_per_s=now.usual_per_s,
            ),
            {
                "ratio": now.latest,
                "steps_per_s": now.now_per_s,
                "usual_steps_per_s": now.usual_per_s,
                "replies": float(now.replies),
                "running_min": minutes,
            },
            Action(ActionKind.RESTART, message("Restart the server")),
        )


# Spill: GPU memory that moved to host memory. There is no error and acceptance is normal, but replies are much slower.
#
# Windows reports it as the shared memory of the process. 115 MiB made an RTX 3090 2.4 times slower (qwen38-mtp,
# sweeps/rtx-3090.md), while nvidia-smi still showed free VRAM. Elsewhere it is inferred from its effects: data in host
# memory crosses PCIe once per verification step, and the waiting GPU draws less power. Traffic alone is no proof
# (prompts transfer experts, too), so it takes two signs.

_GROWTH_MIB, _LARGE_GROWTH_MIB, _UNPLANNED_MIB = 64.0, 256.0, 512.0
"""Least shared memory that is a spill: growth while replies are slower; growth on a full GPU; and, on a full GPU, what
exceeds the memory that the engine placed on the host by design."""
_FULL = 0.80
"""Share of VRAM in use from which a GPU counts as full: WDDM reserves a part for other programs."""
_TRAFFIC_MIB_S, _TRAFFIC_TIMES = 1_000.0, 3.0
"""Least PCIe traffic of a spill, in absolute terms and as a multiple of the usual traffic."""
_SLOWER, _LESS_POWER = 0.75, 0.80
"""Shares of the usual speed and power up to which they are signs of a spill."""
_USUAL_CHECKS = 10
"""Checks after the start whose median is the usual traffic and power."""


class SpillDetector:
    """Detects a spill by growth of shared memory where it is reported, else by PCIe traffic with less speed or power.

    Windows reports the shared memory of the process (`gpu_shared_mib`). amdgpu reports that of all programs
    (`gtt_used_mib`), including the desktop, so its growth is a spill only if replies are slower.
    """

    def __init__(self, setup: ServerSetup, speed: SpeedHistory) -> None:
        self._setup = setup
        self._speed = speed
        self._least_mib: float | None = None
        self._usual: dict[str, list[float]] = {"gpu_power_w": [], "pcie_received_mib_s": []}

    def check(self, moment: Moment) -> CheckResult:
        """See `Detector.check` in health_event.py."""
        speed = self._speed.compare(moment.time_s)
        for name in ("gpu_shared_mib", "gtt_used_mib"):
            counted = moment.value(name)
            if counted is not None:
                return self._check_counter(moment, name, counted, speed)
        return self._check_effects(moment, speed) if moment.generating else None

    def _check_counter(self, moment: Moment, name: str, counted: float, speed: SpeedComparison | None) -> CheckResult:
        """Return the finding by a counter of shared memory; `counted` is its value in MiB."""
        self._least_mib = counted if self._least_mib is None else min(self._least_mib, counted)
        growth, host = counted - self._least_mib, self._setup.host_mib
        used, total = moment.value("vram_used_mib"), self._setup.vram_total_mib
        full = used is not None and bool(total) and used / (total or 1) >= _FULL
        slower = speed is not None and speed.ratio <= _SLOWER
        of_process = name == "gpu_shared_mib"
        if of_process and full and host is not None and counted - host >= _UNPLANNED_MIB:
            spilled = counted - host
        elif (growth >= _GROWTH_MIB and slower) or (of_process and full and growth >= _LARGE_GROWTH_MIB):
            spilled = growth
        else:
            return False if growth < _GROWTH_MIB / 2 else None
        evidence = {name: counted, "spilled_mib": spilled}
        times = _slowdown(speed)
        sentence = (
            message(
                "{spilled:.0f} MiB of the GPU's memory have moved to host memory: replies take"
                " {times:.1f} times as long.",
                spilled=spilled,
                times=times,
            )
            if times
            else message("{spilled:.0f} MiB of the GPU's memory have moved to host memory.", spilled=spilled)
        )
        return _spill_finding(sentence, evidence, speed)

    def _check_effects(self, moment: Moment, speed: SpeedComparison | None) -> CheckResult:
        """Return the finding by PCIe traffic, with speed or power as the second sign."""
        traffic = moment.value("pcie_received_mib_s")
        if traffic is None:
            return None
        power = moment.value("gpu_power_w")
        traffic_times = self._ratio_to_usual("pcie_received_mib_s", traffic)
        power_share = self._ratio_to_usual("gpu_power_w", power)
        if traffic < _TRAFFIC_MIB_S / 2:
            return False
        if traffic < _TRAFFIC_MIB_S or traffic_times is None or traffic_times < _TRAFFIC_TIMES:
            return None
        slower = speed is not None and speed.ratio <= _SLOWER
        less_power = power_share is not None and power_share <= _LESS_POWER
        if not (slower or less_power):
            return None
        evidence = {"pcie_received_mib_s": traffic, "times_usual_traffic": traffic_times}
        if power is not None and power_share is not None:
            evidence |= {"gpu_power_w": power, "share_of_usual_power": power_share}
        times = _slowdown(speed)
        sentence = (
            message(
                "Parts of the model seem to have moved from the GPU's memory to host memory"
                " ({traffic:.0f} MiB/s over PCIe while it generates): replies take {times:.1f} times"
                " as long.",
                traffic=traffic,
                times=times,
            )
            if times
            else message(
                "Parts of the model seem to have moved from the GPU's memory to host memory"
                " ({traffic:.0f} MiB/s over PCIe while it generates).",
                traffic=traffic,
            )
        )
        return _spill_finding(sentence, evidence, speed)

    def _ratio_to_usual(self, name: str, value: float | None) -> float | None:
        """Return `value` divided by the median of this server's first checks; None while these are collected."""
        if value is None:
            return None
        usual = self._usual[name]
        if len(usual) < _USUAL_CHECKS:
            usual.append(value)
            return None
        return value / max(median(usual), 1.0)


def _slowdown(speed: SpeedComparison | None) -> float | None:
    """Return the factor by which replies take longer, or None if it is not significant."""
    return 1 / speed.latest if speed is not None and speed.ratio <= _SLOWER else None


def _spill_finding(sentence: str, evidence: dict[str, float], speed: SpeedComparison | None) -> Finding:
    figures: dict[str, float | str] = dict(evidence)
    if speed is not None:
        figures["speed_ratio"] = speed.latest
    return Finding(
        FindingCode.SPILL, sentence, figures, Action(ActionKind.SMALLER_CONTEXT, message("Halve the context"))
    )


_CAUSES = frozenset(
    {
        FindingCode.SPILL,
        FindingCode.THROTTLED_HOT,
        FindingCode.THROTTLED_HARDWARE,
        FindingCode.THROTTLED_POWER,
        FindingCode.GPU_UNUSED,
        FindingCode.PROCESSOR_BUSY,
    }
)
"""Findings that explain slow replies, so SPEED_FALLING is not raised while there is one of them."""


class Health:
    """Runs all detectors for one server, from its start to its end."""

    def __init__(self, setup: ServerSetup) -> None:
        self.setup = setup
        self.speed = SpeedHistory()
        self._latches = {
            FindingCode.GPU_UNUSED: Latch(UnusedGpuDetector(setup), raise_checks=3, clear_checks=3),
            FindingCode.SPILL: Latch(SpillDetector(setup, self.speed), raise_checks=3, clear_checks=5),
            FindingCode.VRAM_PRESSURE: Latch(VramPressureDetector(setup), raise_checks=3, clear_checks=5),
            FindingCode.THROTTLED_HOT: Latch(
                ThrottlingDetector(FindingCode.THROTTLED_HOT), raise_checks=5, clear_checks=10
            ),
            FindingCode.THROTTLED_HARDWARE: Latch(
                ThrottlingDetector(FindingCode.THROTTLED_HARDWARE), raise_checks=5, clear_checks=10
            ),
            FindingCode.THROTTLED_POWER: Latch(
                ThrottlingDetector(FindingCode.THROTTLED_POWER), raise_checks=10, clear_checks=10
            ),
            FindingCode.ACCEPTANCE_LOW: Latch(LowAcceptanceDetector(setup), raise_checks=2, clear_checks=2),
            FindingCode.DRAFTS_INERT: Latch(InertDraftsDetector(setup), raise_checks=1, clear_checks=1),
            FindingCode.REQUESTS_WAIT: Latch(WaitingRequestsDetector(setup), raise_checks=10, clear_checks=10),
            FindingCode.PROMPT_READ_AGAIN: Latch(RereadPromptsDetector(setup), raise_checks=1, clear_checks=1),
            FindingCode.REPLIES_FAIL: Latch(FailingRepliesDetector(), raise_checks=1, clear_checks=1),
            FindingCode.NOTHING_KEPT: Latch(UnkeptConversationsDetector(), raise_checks=1, clear_checks=1),
            FindingCode.OTHER_DRAFTS: Latch(AdviceDetector(), raise_checks=1, clear_checks=1),
            FindingCode.HOST_MEMORY: Latch(HostMemoryDetector(setup), raise_checks=1, clear_checks=15),
            FindingCode.PROCESSOR_BUSY: Latch(BusyProcessorDetector(setup), raise_checks=1, clear_checks=3),
            FindingCode.SPEED_FALLING: Latch(FallingSpeedDetector(self.speed), raise_checks=2, clear_checks=2),
        }

    @property
    def open_findings(self) -> tuple[Finding, ...]:
        """Findings that were raised and are not cleared."""
        return tuple(latch.raised for latch in self._latches.values() if latch.raised is not None)

    def check(self, moment: Moment) -> tuple[HealthEvent, ...]:
        """Run all detectors on a moment, and return the findings that were raised or cleared."""
        for reply in moment.finished:
            self.speed.add(moment.time_s, reply)
        events = []
        for code, latch in self._latches.items():
            explained = code is FindingCode.SPEED_FALLING and latch.raised is None and self._has_cause()
            event = None if explained else latch.check_moment(moment)
            if event is not None:
                events.append(event)
                if event.cleared and code in _CAUSES:
                    self.speed.drop_last_replies()  # these replies were slow for the cleared reason
        return tuple(events)

    def _has_cause(self) -> bool:
        return any(self._latches[code].raised is not None for code in _CAUSES)
