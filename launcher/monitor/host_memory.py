"""Host memory that an engine or other programs use up: what is left, for how long it lasts, and what takes it.

llama-server keeps prompts of earlier conversations in host memory, by default up to 8 GiB, and checkpoints of recurrent
models, by default up to 32 in each slot. Some builds exceed these limits (llama.cpp #21690, #25437, #25953). When no
memory is left, the Linux kernel kills the program that uses most.
"""

import re
from collections import deque
from collections.abc import Iterable
from dataclasses import dataclass, field
from enum import StrEnum
from math import log2
from pathlib import Path
from statistics import median

from launcher.base.action import Action, ActionKind
from launcher.base.messages import join_messages, message
from launcher.engine.server.own_memory import private_mib
from launcher.machine.gpu import Reading
from launcher.machine.surroundings import read_available_bytes
from launcher.machine.sysfs import ROOT
from launcher.monitor.health_event import CheckResult, Finding, FindingCode, FindingLevel, Moment, ServerSetup

_MIB = 2**20
_NO_CACHE_LINE = message("The engine's log does not report it.")


def read_host_memory(engine_pid: int, root: Path = ROOT) -> dict[str, Reading]:
    """Return the engine's private memory, and what is left for it in its control groups and on this computer.

    Swap does not count as left: a computer that swaps out its engine is practically stopped.
    """
    return {
        "engine_private_mib": Reading(private_mib(engine_pid), message("The engine has ended.")),
        "host_memory_left_mib": Reading(read_available_bytes(root, engine_pid) / _MIB),
    }


# The engine's caches, as its log describes them.

_CACHE_LIMIT = re.compile(r"prompt cache is enabled, size limit: (?:(\d+) MiB|no limit)")
_CACHE_STATE = re.compile(r" - cache state: \d+ prompts, ([\d.]+) MiB")
_CHECKPOINT = re.compile(r"id +(\d+) .*created context checkpoint (\d+) of (\d+) .*size = ([\d.]+) MiB")


@dataclass
class EngineCaches:
    """Sizes of an engine's prompt cache and checkpoints, read from its log (llama.cpp b11669, verbosity 4)."""

    prompts_mib: float | None = None
    _limit_mib: float | None = None
    _checkpoints_mib: dict[str, float] = field(default_factory=dict)
    """Size of the checkpoints of each slot."""
    _slot_most_mib: float = 0.0
    """The most that the checkpoints of one slot can take."""

    def add_lines(self, lines: Iterable[str]) -> None:
        """Read new lines of the log."""
        for line in lines:
            if found := _CACHE_STATE.search(line):
                self.prompts_mib = float(found[1])
            elif found := _CHECKPOINT.search(line):
                slot, count, most, mib = found[1], int(found[2]), int(found[3]), float(found[4])
                self._checkpoints_mib[slot] = count * mib
                self._slot_most_mib = max(self._slot_most_mib, most * mib)
            elif found := _CACHE_LIMIT.search(line):
                self._limit_mib = float(found[1]) if found[1] else None

    def make_readings(self, slots: int) -> dict[str, Reading]:
        """Return the sizes, and by how much the caches can still grow until they reach their limits."""
        if self.prompts_mib is None:
            names = ("prompt_cache_mib", "checkpoints_mib", "caches_to_come_mib")
            return dict.fromkeys(names, Reading.unknown(_NO_CACHE_LINE))
        checkpoints = sum(self._checkpoints_mib.values())
        to_come = None
        if self._limit_mib is not None:
            most = self._limit_mib + slots * self._slot_most_mib
            to_come = max(0.0, most - self.prompts_mib - checkpoints)
        return {
            "prompt_cache_mib": Reading(self.prompts_mib),
            "checkpoints_mib": Reading(checkpoints),
            "caches_to_come_mib": Reading(to_come, message("The prompt cache has no limit.")),
        }


# The detector.

_WINDOWS_S = (10.0, 30.0, 60.0, 180.0)
"""Spans over which the slope is measured: growth may begin suddenly, or come in steps a minute apart."""
_SURE_S = 60.0
"""A slope over a shorter span is a finding only if a restart is urgent: each long prompt takes memory for seconds."""
_FEWEST_CHECKS = 4
_STEADY_SHARE = 0.2
"""The least share of a window's fall in each of its halves: a single step, such as a program's start, does not count as
a slope.
"""
_STILL_SHARE = 0.05
"""The least share of a long window's fall in its last sixth: a fall that is over, such as that of one prompt, does not
count.
"""
_NOTICED_S, _URGENT_S = 600.0, 120.0
"""If memory lasts for fewer seconds, that is a finding, and below the second limit a warning if a restart of the engine
helps.
"""
_OVER = 2.0
"""The finding is over when memory lasts for this many times `_NOTICED_S`."""
_BUFFERS_MIB = 256.0
"""MiB that an engine may allocate for its first prompts besides its caches. A restart does not free them for long."""
_WARNING_STAGE = 100


class Cause(StrEnum):
    """The part of the engine that uses the memory up."""

    PROMPT_CACHE = "prompt_cache"
    CHECKPOINTS = "checkpoints"
    LEAK = "leak"
    """Most of what the engine took is in none of its caches."""
    ENGINE = "engine"
    """The engine; its log does not show which part."""
    OTHER_PROGRAMS = "other_programs"


@dataclass(frozen=True, slots=True)
class _Sample:
    time_s: float
    left_mib: float
    engine_mib: float


@dataclass(frozen=True, slots=True)
class _Slope:
    """The fall of the memory left and the growth of the engine's memory, in MiB per second, over a window of
    `window_s`.
    """

    window_s: float
    fall: float
    growth: float


class HostMemoryDetector:
    """Detects that the host's memory will soon be used up, by the slope of what is left.

    Caches that reach their limits before that are no problem. A restart of the engine is urgent only if it at least
    doubles what is left: so a model that is too large for the computer is not restarted again and again.
    """

    def __init__(self, setup: ServerSetup) -> None:
        self._setup = setup
        self._first_mib: float | None = None
        """The engine's memory when it became ready."""
        self._samples: deque[_Sample] = deque()

    def check(self, moment: Moment) -> CheckResult:
        """See `Detector.check` in health_event.py."""
        left, engine = moment.value("host_memory_left_mib"), moment.value("engine_private_mib")
        if left is None or engine is None:
            return None
        if self._first_mib is None:
            self._first_mib = engine
        self._samples.append(_Sample(moment.time_s, left, engine))
        while self._samples[0].time_s < moment.time_s - _WINDOWS_S[-1]:
            self._samples.popleft()
        slopes = [slope for window_s in _WINDOWS_S if (slope := _measure_slope(self._samples, window_s))]
        found = None
        for slope in slopes:
            found = self._judge(moment, left, slope, engine - self._first_mib) or found
        if found is None and all(left / slope.fall > _OVER * _NOTICED_S for slope in slopes):
            return False
        return found

    def _judge(self, moment: Moment, left: float, slope: _Slope, grown: float) -> Finding | None:
        """Return the finding by one slope."""
        left_s = left / slope.fall
        prompts, checkpoints = moment.value("prompt_cache_mib"), moment.value("checkpoints_mib")
        cause, frees = Cause.ENGINE, grown
        if slope.growth < slope.fall / 2:
            cause, frees = Cause.OTHER_PROGRAMS, 0.0
        elif prompts is not None and checkpoints is not None:
            caches, to_come = prompts + checkpoints, moment.value("caches_to_come_mib")
            unexplained = max(0.0, grown - caches - _BUFFERS_MIB)
            frees = caches + unexplained
            if unexplained > caches:
                cause = Cause.LEAK
            elif to_come is not None and 0 < to_come < left:
                return None  # the caches will reach their limits first; with 0 to come they exceed them already
            else:
                cause = Cause.PROMPT_CACHE if prompts >= checkpoints else Cause.CHECKPOINTS
        urgent = left_s <= _URGENT_S and (cause is Cause.OTHER_PROGRAMS or frees >= left)
        may_wait = cause is not Cause.OTHER_PROGRAMS and left_s <= _NOTICED_S
        if not (urgent or may_wait) or (slope.window_s < _SURE_S and not (urgent and frees)):
            return None
        evidence: dict[str, float | str] = {
            "left_mib": left,
            "left_s": left_s,
            "mib_per_min": 60 * slope.fall,
            "grown_mib": grown,
            "cause": cause.value,
        }
        if prompts is not None and checkpoints is not None:
            evidence |= {"prompt_cache_mib": prompts, "checkpoints_mib": checkpoints}
        action = (
            Action(ActionKind.FREE_MEMORY, message("Close programs that use much memory"))
            if cause is Cause.OTHER_PROGRAMS
            else Action(ActionKind.RESTART, message("Restart the server"))
        )
        halvings = int(max(0.0, log2(_NOTICED_S / max(left_s, 1.0))))
        return Finding(
            FindingCode.HOST_MEMORY,
            join_messages(_describe_time(left, left_s), self._explain_cause(cause, moment, grown)),
            evidence,
            action,
            FindingLevel.WARNING if urgent else FindingLevel.INFORMATION,
            stage=halvings + urgent * _WARNING_STAGE,
        )

    def _explain_cause(self, cause: Cause, moment: Moment, grown: float) -> str:
        match cause:
            case Cause.PROMPT_CACHE:
                mib = moment.value("prompt_cache_mib") or 0.0
                return message("The engine keeps {mib:,.0f} MiB of earlier prompts.", mib=mib)
            case Cause.CHECKPOINTS:
                mib = moment.value("checkpoints_mib") or 0.0
                return message("The engine keeps {mib:,.0f} MiB of checkpoints of its prompts.", mib=mib)
            case Cause.LEAK:
                return message(
                    "The engine took {grown:,.0f} MiB since it was ready, more than its caches hold: probably a leak.",
                    grown=grown,
                )
            case Cause.ENGINE:
                return message("The engine took {grown:,.0f} MiB since it was ready.", grown=grown)
            case Cause.OTHER_PROGRAMS:
                return message("Other programs take it.")


def _measure_slope(samples: Iterable[_Sample], window_s: float) -> _Slope | None:
    """Return the slope of the last `window_s` seconds, by medians of thirds; None if the fall was not steady."""
    every = list(samples)
    every = [each for each in every if each.time_s >= every[-1].time_s - window_s]
    seconds = every[-1].time_s - every[0].time_s
    if len(every) < _FEWEST_CHECKS or seconds < 0.75 * window_s:
        return None
    part = len(every) // 3
    parts = every[:part], every[part:-part], every[-part:]
    left = [median(each.left_mib for each in those) for those in parts]
    engine = [median(each.engine_mib for each in those) for those in parts]
    fall = left[0] - left[2]
    if fall <= 0 or min(left[0] - left[1], left[1] - left[2]) < _STEADY_SHARE * fall:
        return None
    if window_s >= _SURE_S and left[2] - median(each.left_mib for each in every[-3:]) < _STILL_SHARE * fall:
        return None
    between_s = median(each.time_s for each in parts[2]) - median(each.time_s for each in parts[0])
    return _Slope(window_s, fall / between_s, (engine[2] - engine[0]) / between_s)


def _describe_time(left_mib: float, left_s: float) -> str:
    if left_s < 90:
        return message(
            "Host memory will be used up in about {left_s:.0f} s; {left_mib:,.0f} MiB are left.",
            left_s=left_s,
            left_mib=left_mib,
        )
    return message(
        "Host memory will be used up in about {minutes:.0f} min; {left_mib:,.0f} MiB are left.",
        minutes=left_s / 60,
        left_mib=left_mib,
    )
