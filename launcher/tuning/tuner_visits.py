"""One trial: a start, a reply that warms up and is thrown away, then every prompt, what was spoilt once more."""

from collections.abc import Sequence
from dataclasses import replace

from launcher.base.action import ActionKind
from launcher.base.errors import LauncherError, Superseded
from launcher.tuning.plan_of_trials import WARM_UP_TOKENS
from launcher.tuning.records import Bench, Prompt, Run, Settings
from launcher.tuning.tuner_state import Fault, Stage, Trial

_REPEATS = 2
_MOST_SPOILT = 0.3
_WANT_OF_MEMORY = {
    ActionKind.SMALLER_CONTEXT,
    ActionKind.OTHER_KV_TYPE,
    ActionKind.SMALLER_UBATCH,
    ActionKind.DRAFT_OFF,
    ActionKind.SHORTER_DRAFT,
    ActionKind.MORE_EXPERTS_ON_CPU,
    ActionKind.FREE_MEMORY,
}
"""What is proposed where memory was too small."""


async def visit(
    bench: Bench, prompts: Sequence[Prompt], settings: Settings, *, number: int, stage: Stage, passes: int, seed: int
) -> Trial:
    """Start with settings and ask every prompt `passes` times; the first gets `seed`, as its partner in a pair does.

    A start that fails, or a server that ends, is a trial with an error. Raises Superseded when somebody else took the
    server.
    """
    began_s = bench.now_s()

    def done(start_s: float, runs: Sequence[Run], error: str | None = None, fault: Fault = Fault.NONE) -> Trial:
        seconds = bench.now_s() - began_s
        return Trial(number, stage, dict(settings), began_s, seconds, start_s, tuple(runs), error, fault)

    try:
        start_s = await bench.become(settings)
    except Superseded:
        raise
    except LauncherError as error:
        memory = any(action.kind in _WANT_OF_MEMORY for action in error.actions)
        return done(bench.now_s() - began_s, (), error.title, Fault.MEMORY if memory else Fault.FAILED)
    if start_s:
        warm_up = replace(prompts[0], tokens=min(WARM_UP_TOKENS, prompts[0].tokens))
        await bench.run(warm_up, seed=seed)
    runs: list[Run] = []
    spoilt, most = 0, max(1, _MOST_SPOILT * passes * len(prompts))
    for turn in range(passes):
        for prompt in prompts:
            for _ in range(1 + _REPEATS):
                run = await bench.run(prompt, seed=seed + turn)
                runs.append(run)
                if run.error is not None:
                    return done(start_s, runs, run.error, Fault.FAILED)
                if run.spoilt is None:
                    break
                spoilt += 1
                if spoilt > most:  # what spoils so many is hardly absent where no sensor told of it
                    return done(start_s, runs, f"Too many of its runs were spoilt. {run.spoilt}", Fault.SPOILT)
    return done(start_s, runs)
