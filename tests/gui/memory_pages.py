"""A program that reads the verdicts on one set of files from all pages and commands, before and while a server runs.

    python -m tests.gui.memory_pages SERVED PROGRAMS MIB ID ...

ID are models of the catalogue with one file each, SERVED the file that is then served. PROGRAMS is the file in which
the stand-in for the NVIDIA driver finds what programs have of the card: the engine is put there with MIB. Prints what
was read as JSON. It is a program of its own because a process keeps the driver's library that it has loaded.
"""

import json
import re
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

from PySide6.QtWidgets import QApplication

from launcher.app.planning.planner import MachineDescription
from launcher.gui import theme
from launcher.gui.models.page import ModelsPage
from launcher.gui.start.page import StartPage
from launcher.gui.start.queries import PlanRequest
from launcher.gui.window import Window
from tests.cli.in_process import run

_LIMIT_S = 120
_FIGURES = re.compile(r"Needs ([\d,]+) of ([\d,]+) MiB")
_LOADED = "Loaded now."
"""Beginning of the text of the Models page about the served file, for which the page gives no figures."""
Read = dict[str, dict[str, list[Any]]]
"""By place and model: the verdict, MiB needed, MiB free."""


def wait_until(reached: Callable[[], object], what: str) -> None:
    """Let the window work until a condition holds."""
    deadline = time.monotonic() + _LIMIT_S
    while not reached():
        assert time.monotonic() < deadline, f"waited for {what}"
        QApplication.processEvents()
        time.sleep(0.005)  # leave the processor to the core's thread
    QApplication.processEvents()


def run_json(*arguments: str) -> dict[str, Any]:
    """Return the JSON output of a command."""
    result = run(*arguments, "--json")
    assert result.stdout, result.stderr
    answer: dict[str, Any] = json.loads(result.stdout)
    return answer


def _is_settled(page: StartPage) -> bool:
    flow = page.flow
    return page.result is not None and not flow.is_reading and flow._surveying is None


def read_start(window: Window, models: list[str], *, described: bool) -> dict[str, list[Any]]:
    """Read the Start page, asked for one model after the other."""
    window.show_page("start")
    page: StartPage = window.page("start")
    wait_until(lambda: _is_settled(page), "Start")
    read = {}
    for model in models:
        page.read_and_plan(PlanRequest(model, described=MachineDescription((24.0,)) if described else None))
        wait_until(lambda: _is_settled(page), f"Start's plan of {model}")
        assert page.result is not None
        plan = page.result.plans[0]
        assert plan.entry.id == model
        read[model] = [plan.status.value, plan.required_mib, plan.free_mib]
        if page.plan is plan and page.card.badge.isVisible():
            assert page.card.badge.text() == plan.status.value
    return read


def _figures(badge: str, words: str) -> list[Any]:
    needed, free = _FIGURES.findall(words)[0]
    return [badge, int(needed.replace(",", "")), int(free.replace(",", ""))]


def read_models(window: Window, models: list[str]) -> dict[str, list[Any]]:
    """Read the figures that the Models page shows for each model's file. There are none for the one that is served."""
    window.show_page("models")
    page: ModelsPage = window.page("models")
    before = page.shelf
    page.refresh()
    wait_until(lambda: page.shelf is not before and page.shelf is not None and page.shelf.is_complete, "the models")
    read, details = {}, page.details
    for model in models:
        assert page.list.choose(model)
        wait_until(
            lambda: (
                details.badge.isVisible()
                and (_FIGURES.search(details.fit.text()) or details.fit.text().startswith(_LOADED))
            ),
            f"details of {model}",
        )
        row = page.list.tree.row_at(page.list.currentIndex())
        assert row.fit == details.badge.text()
        if not details.fit.text().startswith(_LOADED):
            read[model] = _figures(details.badge.text(), details.fit.text())
    return read


def read_verbs(models: list[str], *described: str) -> Read:
    """Read `plan`, and `estimate` with the settings that it proposes."""
    read: Read = {"plan": {}, "estimate": {}}
    for model in models:
        plan = run_json("plan", "--model", model, *described)["plans"][0]
        read["plan"][model] = [plan["status"], plan["required_mib"], plan["free_mib"]]
        settings = [
            f"--{name.replace('_', '-')}={plan[name]}" for name in ("ctx", "kv", "draft", "ubatch", "n_cpu_moe")
        ]
        result = run_json("estimate", f"{model}:{plan['quant']}", *settings, *described)
        read["estimate"][model] = [result.get("status"), result.get("needed_mib"), result["free_mib"]]
    return read


def read_all(window: Window, models: list[str]) -> dict[str, Any]:
    """Read all places, some of the models for a described computer too, and the figures of the memory."""
    read = {
        "start": read_start(window, models, described=False),
        "models": read_models(window, models),
        **read_verbs(models),
    }
    # Some are enough, because plans for a described computer are made in the same way.
    some = [*models[::4], models[-1]]
    described = {"start": read_start(window, some, described=True), **read_verbs(some, "--gpu-memory", "24")}
    memory = {
        "plan": run_json("plan", "--model", models[0])["machine"].get("memory"),
        "estimate": run_json("estimate", models[0]).get("memory"),
        "doctor": run_json("doctor").get("memory"),
    }
    return {"here": read, "described": described, "memory": memory}


def cockpit_memory(window: Window) -> dict[str, int]:
    """Return what the Cockpit's memory bar is drawn from, read when the page is shown."""
    window.show_page("cockpit")
    state = window.page("cockpit").state
    wait_until(lambda: state.preview is not None and state._reading_launch is None, "the Cockpit's memory")
    basis = state.preview.basis
    return {"total": basis.total_mib, "others": basis.others_mib, "available": basis.available_mib}


def main(served: str, programs: Path, mib: int, models: list[str]) -> None:
    """Open the window, read, serve, read again, stop, and read once more."""
    application = QApplication([])
    theme.apply_theme(application, theme.current())
    window = Window(remember=False, page="start")
    window.resize(1440, 1200)
    window.show()
    received: dict[str, Any] = {"before": read_all(window, models)}
    window.controller.start(served)
    wait_until(lambda: window.controller.view.address and window.controller.launch, "the server")
    session = window.controller.session
    assert session is not None
    received["engine_pid"] = session.supervisor.engine_pid
    others = programs.read_text()
    programs.write_text(f"{others}{received['engine_pid']} {mib}\n")
    received["while"] = read_all(window, models)
    received["cockpit"] = cockpit_memory(window)
    window.controller.stop()
    wait_until(lambda: window.controller.launch is None, "the end of the server")
    programs.write_text(others)
    received["after"] = {"plan": run_json("plan", "--model", models[0])["machine"].get("memory")}
    gone: list[bool] = []
    window.shut_down.connect(lambda: gone.append(True))
    window.quit()
    wait_until(lambda: gone, "the window's end")
    assert window.controller.bridge.close()
    print(json.dumps(received))


if __name__ == "__main__":
    main(sys.argv[1], Path(sys.argv[2]), int(sys.argv[3]), sys.argv[4:])
