"""Measures how long it takes to find and read ten thousand stored runs, and to compute means, intervals and
comparisons.
"""

import random
import time

from benchmarks.measure import format_summary
from benchmarks.reference import Interpreter
from benchmarks.report import Row
from launcher.monitor.meter import Acceptance
from launcher.tuning.history import History
from launcher.tuning.history_environment import Environment, GpuFacts, ModelFacts
from launcher.tuning.records import Run, RunSettings
from launcher.tuning.report import build_report, compare_sessions

_SESSIONS, _RUNS = 200, 50
_LIMIT = 63
_PROMPTS = ("code", "prose", "reasoning", "extraction", "turns")


def run(*, quick: bool) -> list[Row]:
    """Store runs with six draft lengths, then analyse all of them repeatedly."""
    began_s = time.perf_counter()
    with History() as history:
        for number in range(_SESSIONS):
            _store(history, number)
    stored_s = time.perf_counter() - began_s
    bare, seconds, listed = Interpreter(), [], []
    for _ in range(3 if quick else 15):
        bare.start(3)
        took = _analyse()
        seconds.append(took[0])
        listed.append(took[1])
    what = f"{_SESSIONS * _RUNS:,} stored runs read, summarised by setting and compared"
    return [
        bare.row(what, seconds, "s", 2, _LIMIT),
        Row(f"the list of {_SESSIONS} measurements with nothing but their means", format_summary(listed, "s", 3)),
        Row(f"storing them, {_RUNS} runs at a time", f"{stored_s:.1f} s"),
    ]


def _store(history: History, number: int) -> None:
    chance = random.Random(number)
    environment = Environment(
        ModelFacts(f"model {number % 5}", "Q4_K_M", 2**34, ("ab" * 32,)), "b11434", "11434", (GpuFacts("RTX 4090"),)
    )
    session = history.begin_session("tune", environment, {"draft": 0}, workload="code")
    runs = []
    for index in range(_RUNS):
        draft = index % 6
        settings: RunSettings = {
            "draft": draft,
            "kv": "q8_0",
            "ubatch": 512,
            "ctx": 32_768,
            "n_cpu_moe": None,
            "threads": None,
        }
        drafts = Acceptance(100 * draft, 60 * draft, (100,) * draft, (60,) * draft) if draft else None
        rate = chance.gauss(100 + 10 * draft, 4)
        made = Run(
            _PROMPTS[index // 10], settings, index, 2.5, 40, 0, 250, 900.0, rate, 0.2, drafts, 210.0, 500.0, 60.0
        )
        runs.append(made)
    history.add_runs(session, runs)
    history.finish(session, {"sentence": "Draft 2 is 41 % faster than no MTP."})


def _analyse() -> tuple[float, float]:
    """Return the seconds of the whole analysis, and the seconds for the list of sessions, which is a part of it."""
    began_s = time.perf_counter()
    with History() as history:
        found = history.find_sessions()
        listed_s = time.perf_counter() - began_s
        sessions = history.load_all([each.id for each in found])
    for session in sessions:
        build_report(session.runs)
    build_report([each for session in sessions for each in session.runs])
    compare_sessions(sessions[0], sessions[-1])
    return time.perf_counter() - began_s, listed_s
