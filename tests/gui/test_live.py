"""The live column of the layout Chat, over the real engine."""

import pytest
from pytestqt.qtbot import QtBot

from launcher.gui.chat.usage import ContextUse
from launcher.gui.cockpit.live import LiveColumn, format_token_count
from launcher.gui.cockpit.page import CockpitPage
from launcher.gui.labels import UNKNOWN
from launcher.gui.window import Window

pytestmark = pytest.mark.usefixtures("no_charts")


@pytest.fixture
def live(demo: Window, qtbot: QtBot) -> LiveColumn:
    demo.resize(1440, 900)
    page: CockpitPage = demo.page("cockpit")
    page.panes.choose_layout("chat")
    qtbot.waitUntil(page.live.isVisible)
    return page.live


def texts(live: LiveColumn) -> dict[str, str]:
    return {name: label.text() for name, label in live.values.items()}


def test_the_column_shows_current_values_and_those_of_the_open_chat(
    live: LiveColumn, demo: Window, qtbot: QtBot
) -> None:
    page: CockpitPage = demo.page("cockpit")
    qtbot.waitUntil(lambda: texts(live)["temperature"] == "0.80")
    assert texts(live) == {
        "context": "– of 8K",  # noqa: RUF001 -- the sign for an unknown value
        "reuse": "–",  # noqa: RUF001
        "thinking": "auto",
        "temperature": "0.80",
        "limit": "none",
    }
    qtbot.waitUntil(page.chat.column.suggestions.hint.isVisible)  # the demo drafts tokens
    with qtbot.waitSignal(demo.controller.replied) as ended:
        page.chat.send_question("What is a draft?")
    assert ended.args is not None
    timings = ended.args[0].timings
    tokens = timings.prompt_n + timings.cache_n + timings.predicted_n
    qtbot.waitUntil(lambda: texts(live)["context"] == f"{tokens} of 8K")
    figures = {each.plot.name: each for each in live.figures}
    assert [name for name, each in figures.items() if each.isVisible()] == ["rate", "acceptance", "host"]
    rate = figures["rate"].read_out.value
    qtbot.waitUntil(lambda: rate.text() != UNKNOWN)  # the reply can end before the first sample of it
    assert float(rate.text().replace(",", "")) > 0
    assert figures["acceptance"].read_out.caption.text().split("\n")[-1].startswith("1st ")
    assert figures["host"].read_out.aside.endswith(" free")
    assert figures["rate"].line.find_points()
    assert live.note.text().startswith("The demo shows each step, not a speed-up")
    demo.controller.set_sampling_value("max_tokens", 2_048)
    demo.controller.set_sampling_value("thinking", False)
    qtbot.waitUntil(lambda: texts(live)["limit"] == "2,048" and texts(live)["thinking"] == "off")
    assert page.chat.composer.thinking.text() == "Thinking: off"
    page.chat.composer.thinking.menu().actions()[1].trigger()
    assert demo.controller.sampling["thinking"] is True
    assert page.controls.sampling.thinking.value is True
    with qtbot.waitSignal(demo.controller.applied):
        demo.controller.apply_settings({"draft": 0}, drain_s=0)
    qtbot.waitUntil(lambda: [name for name, each in figures.items() if each.isVisible()] == ["rate", "host"])
    qtbot.waitUntil(lambda: texts(live)["thinking"] == "on")
    conversation = page.chat.conversation.id or ""
    page.chat.start_conversation()
    qtbot.waitUntil(lambda: texts(live)["reuse"] == "–")  # noqa: RUF001
    page.chat.open_conversation(conversation)
    qtbot.waitUntil(lambda: texts(live)["context"] == f"{tokens} of 8K")


def test_the_column_is_updated_only_while_it_is_visible(live: LiveColumn, demo: Window, qtbot: QtBot) -> None:
    page: CockpitPage = demo.page("cockpit")
    page.panes.choose_layout("watch")
    before = live.updates
    for _ in range(3):
        with qtbot.waitSignal(page.plots.recorded):
            pass
    assert live.updates == before
    page.panes.choose_layout("chat")
    qtbot.waitUntil(lambda: live.updates > before)


@pytest.mark.parametrize(
    ("count", "text"), [(0, "0"), (940, "940"), (1_024, "1K"), (1_946, "1.9K"), (12_800, "12K"), (131_072, "128K")]
)
def test_tokens_are_written_in_short(count: int, text: str) -> None:
    assert format_token_count(count) == text


def test_the_use_of_a_reply_without_figures_is_unknown() -> None:
    assert ContextUse.from_figures({"predicted_n": 9}) is None
    use = ContextUse.from_figures({"prompt_n": 10, "cache_n": 90, "predicted_n": 20})
    assert use == ContextUse(10, 90, 20)
    assert (use.tokens, use.reuse) == (120, 0.9)
    assert ContextUse(0, 0, 0).reuse is None
