"""Proves that agents with late system messages work with a chat template that refuses them."""

import subprocess
from pathlib import Path

from launcher.engine.demo import unpack_demo_model
from tests.agents.test_late_system import GUARDED
from tests.models.tiny_models import write_templated
from tools.prove_agents.transcript import describe_run
from tools.prove_agents.turns import HEADLESS
from tools.prove_agents.workplace import CodeRun, Workplace, run_code

_QUESTION = "What is multi-token prediction?"
_REFUSED_S = 60.0
_REFUSAL = "System message must be at the beginning"


def prove_late_system(place: Workplace, engine: Path | None, template: Path | None) -> bool:
    """Print a session with the model's own template, which must fail, and one with the corrected template."""
    model = place.folder / "guarded.gguf"
    write_templated(unpack_demo_model(), model, template.read_text() if template else GUARDED)
    server = ["--model", str(model), "--ctx", "65536", "--slots", "1", "--no-check"]
    server += ["--engine", str(engine)] if engine else []
    arguments = (*HEADLESS[place.agent.name][0], _QUESTION)
    try:
        refused = run_code(place, [*server, "--own-template"], arguments, limit_s=_REFUSED_S)
    except subprocess.TimeoutExpired as error:  # Codex repeats refused requests without end
        refused = CodeRun(tuple(error.cmd[3:]), 1, str(error.output))
    answered = run_code(place, server, arguments)
    for run in (refused, answered):
        print(describe_run(place, run), end="\n\n", flush=True)
    (place.folder / "refused.txt").write_text(refused.output)
    (place.folder / "answered.txt").write_text(answered.output)
    logs = [path.read_text(errors="replace") for path in (place.folder / "launcher").rglob("engine-*.log")]
    is_refused = bool(refused.code) and any(_REFUSAL in text for text in (refused.output, *logs))
    return is_refused and not answered.code
