"""Whether agents that send late system messages work with a chat template that refuses them."""

from pathlib import Path

from launcher.engine.demo import unpack_demo_model
from tests.agents.test_late_system import GUARDED
from tests.models.tiny_models import write_templated
from tools.prove_agents.transcript import describe_run
from tools.prove_agents.turns import HEADLESS
from tools.prove_agents.workplace import Workplace, run_code

_QUESTION = "What is multi-token prediction?"
_REFUSAL = "System message must be at the beginning"


def prove_late_system(place: Workplace, engine: Path | None) -> bool:
    """Print a session with the model's own template, which must fail, and one with the corrected template."""
    model = place.folder / "guarded.gguf"
    write_templated(unpack_demo_model(), model, GUARDED)
    server = ["--model", str(model), "--ctx", "65536", "--slots", "1", "--no-check"]
    server += ["--engine", str(engine)] if engine else []
    arguments = (*HEADLESS[place.agent.name][0], _QUESTION)
    refused = run_code(place, [*server, "--own-template"], arguments)
    answered = run_code(place, server, arguments)
    for run in (refused, answered):
        print(describe_run(place, run), end="\n\n", flush=True)
    (place.folder / "refused.txt").write_text(refused.output)
    (place.folder / "answered.txt").write_text(answered.output)
    return _REFUSAL in refused.output and bool(refused.code) and not answered.code
