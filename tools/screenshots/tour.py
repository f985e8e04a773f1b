"""Takes the pictures of one theme and language: all pages in their states and in three sizes, with a simulated card.
One window goes from the empty home of a new user to a server with several clients and a finished tune.
"""

import os
import signal
import sys
import tempfile
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

from PySide6.QtCore import QEventLoop
from PySide6.QtWidgets import QApplication

from launcher.base.paths import models_dir
from launcher.engine.builds.installed import add_engine, use_engine
from launcher.engine.demo import unpack_demo_model
from launcher.engine.server.state import ServerState, ServerStatus
from launcher.gui.application import collect_garbage_in_this_thread
from launcher.gui.window import Window
from tools.screenshots import scene
from tools.screenshots.card import Card
from tools.screenshots.clients import Clients
from tools.screenshots.gallery import Picture
from tools.screenshots.picture import resize_window, take_picture, wait_ms, wait_until

SIZES = ((1_440, 900), (1_000, 640), (2_560, 1_440))
_LAYOUTS = ("watch", "adjust", "chat")
_SETTLE_MS, _STALE_MS, _STREAM_MS = 400, 7_000, 150_000
_TUNE_MS, _TUNE_MINUTES, _TRIALS = 900_000, 2, 3
"""Time limit of the tune, its budget, and the number of settings tried when the picture of the running tune is taken.
"""
_LIMIT_MS = 60_000
_TO_GET = "qwen3.8-27b"
"""A model of the catalogue that has three different plans on the described card."""
_AGENT = "#!/bin/sh\necho opencode 1.18.33\n"
_ENGINE = '#!/bin/sh\nexec "{python}" "{program}" "$@"\n'
_PROGRAM = Path(__file__).parents[2] / "tests" / "fakes" / "agent_server.py"


class Tour:
    """Leads a window through its pages, and takes the pictures."""

    def __init__(self, window: Window, card: Card, folder: Path, look: str, language: str, pages: list[str]) -> None:
        self.window, self.card = window, card
        self._folder, self._look, self._language = folder, look, language
        self._pages = pages

    def wants(self, *pages: str) -> bool:
        """Return whether pictures of any of these pages are wanted."""
        return any(each in self._pages for each in pages)

    def show_page(self, name: str) -> None:
        """Show a page, and wait until it begins to read its contents."""
        if self.window.page_name != name:
            loop = QEventLoop()
            self.window.page_shown.connect(loop.quit)
            self.window.show_page(name)
            loop.exec()
            self.window.page_shown.disconnect(loop.quit)

    def take(self, page: str, state: str, ready: Callable[[], object] | None = None) -> None:
        """Take pictures of the shown page in each size. `ready` is called before each, and may wait."""
        if page not in self._pages:
            return
        for size in SIZES:
            resize_window(self.window, *size)
            wait_ms(_SETTLE_MS)
            if ready is not None:
                ready()
            self._save(page, state, size)

    def take_at_once(self, page: str, state: str) -> None:
        """Take pictures of a page at the moment when it is shown, before it has read anything."""
        if page not in self._pages:
            return

        self.show_page(page)
        for size in SIZES:
            resize_window(self.window, *size)
            self._save(page, state, size)

    def _save(self, page: str, state: str, size: tuple[int, int]) -> None:
        name = Picture(page, state, self._look, self._language, "{}x{}".format(*size)).file_name
        take_picture(self.window, self._folder / name)
        print(name, flush=True)


def main() -> int:
    """Take the pictures of one theme and language."""
    folder, look, language, pages = Path(sys.argv[1]), sys.argv[2], sys.argv[3], sys.argv[4].split(",")
    with tempfile.TemporaryDirectory(prefix="mtp-launcher-") as home:
        readings, programs = Path(home) / "readings", Path(home) / "programs"
        os.environ |= {"STUB_READINGS": str(readings), "STUB_PROGRAMS": str(programs)}
        os.environ["HF_ENDPOINT"] = "http://127.0.0.1:9"  # nothing answers there, so there is no hub
        application = QApplication(sys.argv[:1])
        collect_garbage_in_this_thread(application)
        scene.use_empty_home(Path(home))
        os.environ["PATH"] = f"{home}/bin:/usr/bin:/bin"
        scene.choose_look(application, look, language)
        window = Window(remember=False, page="about")
        card = Card(window, readings, programs)
        resize_window(window, *SIZES[0])
        built: list[bool] = []
        window.prebuilt.connect(lambda: built.append(True))
        window.show()
        window.prebuild_next()
        wait_until(lambda: bool(built))
        tour = Tour(window, card, folder, look, language, pages)
        try:
            _take_all(tour, Path(home))
        finally:
            code = scene.close_window(window)
        return code


def _take_all(tour: Tour, home: Path) -> None:
    """Take all pictures: from the empty home of a new user to a server with clients, a tune and an agent."""
    _take_loading(tour)
    _take_empty(tour)
    scene.write_models()
    _take_models(tour)
    _take_start(tour)
    _take_failed(tour)
    scene.serve_demo(tour.window)
    with _run_clients(tour.window):
        _take_small_pages(tour)
        _take_agents(tour, home)
        _take_cockpit(tour)
    _take_tune(tour)
    _take_plans(tour)
    if tour.wants("agents"):
        _take_ready_agent(tour, home)


@contextmanager
def _run_clients(window: Window) -> Iterator[None]:
    """Let several clients use the server."""
    keys: list[str] = []
    window.controller.read_api_key(keys.append)
    wait_until(lambda: bool(keys and window.controller.view.address))
    clients = Clients(window.controller.view.address, keys[0])
    try:
        yield
    finally:
        clients.stop()


def _take_loading(tour: Tour) -> None:
    """Take the pages before they have read anything, and the cockpit while a model loads."""
    for page in ("start", "models", "agents", "tune", "logs"):
        tour.take_at_once(page, "loading")
    if tour.wants("cockpit"):
        tour.show_page("cockpit")
        for layout in _LAYOUTS:
            tour.window.page("cockpit").panes.choose_layout(layout)
            tour.window.controller.bridge.drained.emit([ServerStatus(ServerState.LOADING, percent=42)])
            tour.take("cockpit", f"loading, {layout}")
        tour.window.controller.bridge.drained.emit([ServerStatus()])


def _take_empty(tour: Tour) -> None:
    """Take the pages of a new user, with nothing on the computer."""
    for page in ("tune", "agents", "logs"):
        if tour.wants(page):
            tour.show_page(page)
            wait_ms(_SETTLE_MS)
            tour.take(page, "empty")
    if tour.wants("models"):
        tour.show_page("models")
        models = tour.window.page("models")
        wait_until(lambda: models.shelf is not None and models.shelf.is_complete)
        models.search.filter.button("here").click()
        tour.take("models", "empty")
        models.search.filter.button("all").click()
    if tour.wants("cockpit"):
        tour.show_page("cockpit")
        for layout in _LAYOUTS:
            tour.window.page("cockpit").panes.choose_layout(layout)
            tour.take("cockpit", f"empty, {layout}")


def _take_failed(tour: Tour) -> None:
    """Take the cockpit after a start that failed."""
    models_dir().mkdir(parents=True, exist_ok=True)
    broken = models_dir() / "broken.gguf"
    broken.write_bytes(b"GGUF" + bytes(64))
    if tour.wants("cockpit"):
        tour.window.open_file(broken)
        wait_until(lambda: bool(tour.window.controller.view.problem))
        for layout in _LAYOUTS:
            tour.window.page("cockpit").panes.choose_layout(layout)
            tour.take("cockpit", f"failed, {layout}")
    broken.unlink()


def _take_models(tour: Tour) -> None:
    """Take the library with models of all kinds, a search that finds nothing, and a download that fails."""
    if not tour.wants("models"):
        return
    tour.show_page("models")
    page = tour.window.page("models")
    page.refresh()
    wait_until(
        lambda: page.shelf is not None and page.shelf.is_complete and any(each.is_here for each in page.shelf.models)
    )
    tour.take("models", "with models")
    key = next(each.key for each in page.list.models if not each.is_here and len(each.files) > 2)
    page.list.choose(key)
    page.list.setExpanded(page.list.tree.find_index(key), True)
    wait_until(lambda: all(each.plan or each.lack for each in page.list.model_row.files))
    tour.take("models", "a model to get, with its files")
    page.download_selected()
    wait_until(lambda: any(each.state.value == "failed" or each.failure for each in page.queue.snapshot.jobs))
    tour.take("models", "failed")
    page.search.field.setText("no such model")
    wait_ms(_SETTLE_MS)
    tour.take("models", "nothing found")
    page.search.field.clear()
    page.add_button.click()
    page.show_folders(shows=True)
    tour.take("models", "folders, and a link to add")
    page.show_folders(shows=False)
    page.add_button.click()


def _take_start(tour: Tour) -> None:
    if tour.wants("start"):
        tour.show_page("start")
        start = tour.window.page("start")
        wait_until(lambda: start.plan is not None)
        wait_ms(_SETTLE_MS)
        tour.take("start", "with plans")


def _take_small_pages(tour: Tour) -> None:
    """Take the pages whose content does not change, while clients use the server."""
    if tour.wants("settings"):
        tour.show_page("settings")
        page = tour.window.page("settings")
        for section in page.cards:
            page.show_section(section)
            tour.take("settings", section.lower())
        page.search.setText("memory")
        tour.take("settings", "a search")
        page.search.clear()
    for name in ("keys", "about", "logs"):
        if tour.wants(name):
            tour.show_page(name)
            wait_ms(_SETTLE_MS)
            tour.take(name, "with content")


def _take_agents(tour: Tour, home: Path) -> None:
    """Take an agent that is not installed, and one whose server does not suit."""
    if not tour.wants("agents"):
        return
    tour.show_page("agents")
    control = tour.window.page("agents").control
    wait_until(lambda: control.found is not None)
    tour.take("agents", "not installed")
    _write_program(home, "opencode", _AGENT)
    control.find_agents()
    control.choose_agent("opencode")
    wait_until(lambda: control.is_installed and control.session is not None)
    wait_ms(_SETTLE_MS)
    tour.take("agents", "failed")


def _take_cockpit(tour: Tour) -> None:
    """Take the cockpit in all layouts with clients and the chat; then with an engine that does not answer."""
    if not tour.wants("cockpit"):
        return
    window = tour.window
    tour.show_page("cockpit")
    page = window.page("cockpit")
    wait_ms(_STREAM_MS)
    for layout in ("chat", "adjust", "watch"):
        page.panes.choose_layout(layout)
        if layout == "chat":
            page.chat.colour_button.setChecked(True)
            scene.ask_question(window, scene.QUESTIONS[0])
        if layout == "adjust":
            page.state.request_value("draft", 3)
        tour.take("cockpit", layout, lambda: wait_until(lambda: window.controller.view.state_text != "", _LIMIT_MS))
    session = window.controller.session
    pid = None if session is None else session.supervisor.engine_pid
    if pid is None:
        raise RuntimeError("The engine has ended.")
    os.kill(pid, signal.SIGSTOP)
    try:
        wait_ms(_STALE_MS)
        tour.take("cockpit", "stale")
    finally:
        os.kill(pid, signal.SIGCONT)


def _take_plans(tour: Tour) -> None:
    """Take the three plans of a model that is not downloaded, while no server runs, and the choice of one plan."""
    if not tour.wants("cockpit"):
        return
    controller, page = tour.window.controller, tour.window.page("cockpit")
    tour.show_page("cockpit")
    page.panes.choose_layout("adjust")
    controller.stop()
    wait_until(lambda: controller.view.resting)
    tour.card.write_readings()  # the engine is gone from the card before plans are made
    controller.start(_TO_GET)
    wait_until(lambda: bool(controller.view.problem))
    stops = page.controls.stops
    wait_until(lambda: bool(stops.stops))
    tour.take("cockpit", "plans of a model to get")
    stops.buttons["better-quality"].click()
    tour.take("cockpit", "a plan chosen")


def _take_tune(tour: Tour) -> None:
    """Take a tune that runs, and the same one when it has ended."""
    if not tour.wants("tune"):
        return
    tour.show_page("tune")
    page = tour.window.page("tune")
    page.budget.set_value(_TUNE_MINUTES)
    wait_until(page.measure.isEnabled)
    page.measure.click()
    wait_until(lambda: len(page.table.rows) >= _TRIALS or not page.tuning.running, _TUNE_MS)
    tour.take("tune", "measuring")
    wait_until(lambda: not page.tuning.running, _TUNE_MS)
    wait_ms(_SETTLE_MS)
    tour.take("tune", "with a verdict")


def _take_ready_agent(tour: Tour, home: Path) -> None:
    """Take a check that was passed, and its verdict when the server has other settings since."""
    engine = _write_program(home, "llama-server", _ENGINE.format(python=sys.executable, program=_PROGRAM))
    use_engine(add_engine(engine).name)
    controller = tour.window.controller
    controller.stop()
    wait_until(lambda: controller.view.resting)
    controller.start(str(unpack_demo_model()))
    wait_until(lambda: controller.inputs.status.state is ServerState.READY)
    tour.show_page("agents")
    control = tour.window.page("agents").control
    wait_until(lambda: control.session is not None and not control.is_busy)
    control.start_check()
    wait_until(lambda: not control.is_busy and control.record is not None)
    tour.take("agents", "checked")


def _write_program(home: Path, name: str, text: str) -> Path:
    """Write a program into the folder of the home that is in PATH."""
    path = home / "bin" / name
    path.parent.mkdir(exist_ok=True)
    path.write_text(text)
    path.chmod(0o755)
    return path


if __name__ == "__main__":
    sys.exit(main())
