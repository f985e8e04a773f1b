"""Pictures, texts and PDFs in the chat, with the scripted engine, and with the real one and a random projector."""

import base64
import json
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from PySide6.QtCore import Qt
from PySide6.QtGui import QColor, QImage
from PySide6.QtWidgets import QApplication, QDialog, QPushButton
from pytestqt.qtbot import QtBot

from launcher.app.planning.start_settings import ResolvedStart
from launcher.engine.serve_options import ServeOptions
from launcher.engine.server.state import ServerState
from launcher.gui.chat.attachments import AttachmentTile, encode_picture
from launcher.gui.chat.pane import ChatPane
from launcher.gui.window import Window
from tests.gui.chatting import can_send, in_file
from tests.gui.dragging import drag_files, drop_files

WaitFor = Callable[..., None]


def write_pdf(file: Path, *lines: str) -> None:
    """Write a PDF with a page for each line of text."""
    pages = [f"BT /F1 12 Tf 72 700 Td ({line}) Tj ET".encode() for line in lines]
    kids = " ".join(f"{4 + 2 * number} 0 R" for number in range(len(pages)))
    objects = [
        b"<< /Type /Catalog /Pages 2 0 R >>",
        f"<< /Type /Pages /Kids [{kids}] /Count {len(pages)} >>".encode(),
        b"<< /Type /Font /Subtype /Type1 /BaseFont /Helvetica >>",
    ]
    for number, stream in enumerate(pages):
        page = f"<< /Type /Page /Parent 2 0 R /MediaBox [0 0 595 842] /Contents {5 + 2 * number} 0 R"
        objects.append(f"{page} /Resources << /Font << /F1 3 0 R >> >> >>".encode())
        objects.append(b"<< /Length %d >>\nstream\n%s\nendstream" % (len(stream), stream))
    data, offsets = b"%PDF-1.4\n", []
    for number, each in enumerate(objects, 1):
        offsets.append(len(data))
        data += b"%d 0 obj\n%s\nendobj\n" % (number, each)
    table = b"".join(b"%010d 00000 n \n" % offset for offset in offsets)
    end = b"xref\n0 %d\n0000000000 65535 f \n%strailer\n<< /Size %d /Root 1 0 R >>\nstartxref\n%d\n%%%%EOF\n"
    file.write_bytes(data + end % (len(objects) + 1, table, len(objects) + 1, len(data)))


def make_image(width: int = 64, height: int = 48) -> QImage:
    image = QImage(width, height, QImage.Format.Format_RGB32)
    image.fill(QColor("#C04F00"))
    return image


@pytest.fixture
def requests(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """The file in which the scripted engine records its requests."""
    file = tmp_path / "requests"
    monkeypatch.setenv("FAKE_REQUESTS", str(file))
    return file


@pytest.fixture
def serve(window: Window, wait_for: WaitFor, demo_model: Path, qtbot: QtBot) -> Callable[..., ChatPane]:
    """Serve the demo model by an engine, with or without a projector, and return the chat."""

    def start_chat(engine: Path | None, projector: Path | None = None) -> ChatPane:
        options = ServeOptions(model=demo_model, engine=engine, draft=0, context=4_096, mmproj=projector)
        window.controller.start(str(demo_model), start=ResolvedStart(str(demo_model), options))
        wait_for(ServerState.READY)
        chat: ChatPane = window.page("cockpit").chat
        qtbot.waitUntil(lambda: can_send(chat) and window.controller.launch is not None)
        return chat

    return start_chat


@pytest.fixture(scope="session")
def projector(tmp_path_factory: pytest.TempPathFactory) -> Path:
    from tools.random_projector import read_demo_embedding, write_projector

    file = tmp_path_factory.mktemp("projector") / "mmproj-random.gguf"
    write_projector(file, read_demo_embedding())
    return file


def tiles(widget: Any) -> list[AttachmentTile]:  # noqa: ANN401 -- any widget
    return [each for each in widget.findChildren(AttachmentTile) if each.isVisibleTo(widget)]


def paste(chat: ChatPane, qtbot: QtBot, image: QImage) -> None:
    QApplication.clipboard().setImage(image)
    qtbot.keyClick(chat.prompt, Qt.Key.Key_V, Qt.KeyboardModifier.ControlModifier)


def send(chat: ChatPane, qtbot: QtBot, text: str) -> None:
    qtbot.keyClicks(chat.prompt, text)
    qtbot.keyClick(chat.prompt, Qt.Key.Key_Return)
    qtbot.waitUntil(lambda: can_send(chat) and bool(chat.messages) and chat.messages[-1]["role"] == "assistant")


def newest_content(requests: Path) -> Any:  # noqa: ANN401 -- as it was sent
    chats = [json.loads(line) for line in requests.read_text("utf-8").splitlines()]
    return [each for each in chats if "messages" in each][-1]["messages"][-1]["content"]


def test_a_pasted_picture_is_sent_shown_and_kept(
    serve: Callable[..., ChatPane], qtbot: QtBot, fake_engine: Path, projector: Path, requests: Path
) -> None:
    chat = serve(fake_engine, projector)
    paste(chat, qtbot, make_image())
    qtbot.waitUntil(lambda: bool(chat.composer.files.attachments))
    (tile,) = tiles(chat.composer)
    assert "64 × 48" in tile.note.text()  # noqa: RUF001 -- the sign of sizes
    send(chat, qtbot, "What is this?")
    assert tiles(chat.composer) == []
    picture, text = newest_content(requests)
    assert text == {"type": "text", "text": "What is this?"}
    head, data = picture["image_url"]["url"].split(",")
    assert head == "data:image/png;base64"
    sent = QImage.fromData(base64.b64decode(data))
    assert (sent.width(), sent.height(), sent.pixelColor(5, 5).name()) == (64, 48, "#c04f00")
    (shown,) = tiles(chat.column)
    qtbot.mouseClick(shown, Qt.MouseButton.LeftButton)
    qtbot.waitUntil(lambda: isinstance(QApplication.activeModalWidget(), QDialog))
    QApplication.activeModalWidget().close()
    send(chat, qtbot, "And now?")
    assert newest_content(requests) == "And now?"
    stored = in_file(chat, qtbot, lambda kept: kept.read_conversation(chat.conversation.id or ""))
    assert stored.messages[0].attachments[0].data == base64.b64decode(data)
    conversation_id = chat.conversation.id or ""
    chat.start_conversation()
    chat.open_conversation(conversation_id)
    qtbot.waitUntil(lambda: len(tiles(chat.column)) == 1)
    send(chat, qtbot, "Once more?")
    kept = [json.loads(line) for line in requests.read_text("utf-8").splitlines()][-1]["messages"]
    assert kept[0]["content"][0] == picture, "the model sees it with later questions, too"


def test_texts_and_pdfs_are_dropped_with_their_tokens(
    serve: Callable[..., ChatPane], qtbot: QtBot, fake_engine: Path, tmp_path: Path, requests: Path
) -> None:
    chat = serve(fake_engine)
    text, pdf = tmp_path / "notes.txt", tmp_path / "paper.PDF"
    text.write_text("one two three\n", "utf-8")
    write_pdf(pdf, "Drafts are cheap", "Checks are not")
    assert drop_files(chat, text, pdf)
    qtbot.waitUntil(lambda: [each.note.text() for each in tiles(chat.composer)] == ["3 tokens", "2 pages · 6 tokens"])
    send(chat, qtbot, "What do they say?")
    content = newest_content(requests)
    assert content.startswith("File notes.txt:\n\none two three\n\nFile paper.PDF:\n\nDrafts are cheap")
    assert content.endswith("Checks are not\n\nWhat do they say?")
    assert chat.messages[0]["content"] == "What do they say?"
    qtbot.keyClick(chat.prompt, Qt.Key.Key_Up)
    qtbot.waitUntil(lambda: [each.note.text() for each in tiles(chat.composer)] == ["3 tokens", "2 pages · 6 tokens"])
    qtbot.mouseClick(tiles(chat.composer)[0].remove_button, Qt.MouseButton.LeftButton)
    assert len(tiles(chat.composer)) == 1
    qtbot.keyClick(chat.prompt, Qt.Key.Key_Escape)
    assert tiles(chat.composer) == []


def test_a_file_larger_than_the_context_is_reported(
    serve: Callable[..., ChatPane], qtbot: QtBot, fake_engine: Path, tmp_path: Path
) -> None:
    chat = serve(fake_engine)
    file = tmp_path / "long.txt"
    file.write_text("word " * 5_000, "utf-8")
    assert drop_files(chat, file)
    qtbot.waitUntil(lambda: "the context has 4,096" in tiles(chat.composer)[0].note.text())


def test_unreadable_files_are_refused_with_the_reason(pane: ChatPane, qtbot: QtBot, tmp_path: Path) -> None:
    broken, binary, model = tmp_path / "broken.pdf", tmp_path / "data.bin", tmp_path / "model.gguf"
    broken.write_bytes(b"%PDF-1.4\nnothing")
    binary.write_bytes(b"\0\1\2\xff" * 50)
    model.write_bytes(b"GGUF")
    for file, reason in (
        (broken, "broken.pdf cannot be read"),
        (binary, "data.bin is not a text file"),
        (tmp_path / "gone.txt", "gone.txt cannot be read"),
    ):
        assert drop_files(pane, file)
        qtbot.waitUntil(lambda reason=reason: reason in pane.banner.text.text())
        assert tiles(pane.composer) == []
    assert not drag_files(pane, model), "the window opens it"


def test_a_picture_for_a_model_without_vision_is_refused_with_the_reason(
    chat: ChatPane, qtbot: QtBot, tmp_path: Path
) -> None:
    file = tmp_path / "chart.png"
    make_image().save(str(file))
    assert drop_files(chat, file)
    qtbot.waitUntil(lambda: chat.banner.isVisible() and "cannot see pictures" in chat.banner.text.text())
    chat.banner.clear()
    paste(chat, qtbot, make_image())
    qtbot.waitUntil(chat.banner.isVisible)
    assert tiles(chat.composer) == []
    assert chat.prompt.toPlainText() == ""


def test_a_projector_beside_the_model_is_offered(
    serve: Callable[..., ChatPane], window: Window, wait_for: WaitFor, qtbot: QtBot, projector: Path, demo_model: Path,
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch,
) -> None:  # fmt: skip
    """The real engine: without a projector first, then with the one that the button loads; it sees a picture."""
    monkeypatch.setattr("launcher.models.locate.find_projector", lambda _selection: projector)
    chat = serve(None)
    paste(chat, qtbot, make_image(300, 200))
    qtbot.waitUntil(lambda: "without its vision projector" in chat.banner.text.text())
    chat.prompt.setPlainText("What is this?")
    qtbot.keyClick(chat.prompt, Qt.Key.Key_Return)
    assert chat.messages == [], "a question is not sent without its picture"
    chat.prompt.clear()
    (button,) = [each for each in chat.banner.findChildren(QPushButton) if each.text().startswith("Load it with")]
    qtbot.mouseClick(button, Qt.MouseButton.LeftButton)
    qtbot.waitUntil(
        lambda: window.controller.launch is not None and window.controller.launch.options.mmproj is not None
    )
    wait_for(ServerState.READY)
    qtbot.waitUntil(lambda: can_send(chat))
    prompts: list[int] = []
    window.controller.replied.connect(
        lambda reply, _footer: prompts.append(reply.timings.prompt_n + reply.timings.cache_n)
    )
    assert len(chat.composer.files.attachments) == 1, "the picture is still there"
    send(chat, qtbot, "What is MTP?")
    assert chat.column.replies[-1].text
    chat.start_conversation()
    send(chat, qtbot, "What is MTP?")
    assert prompts[0] - prompts[1] >= 16, "a token for each patch of the picture"


@pytest.mark.parametrize(
    ("size", "transparent", "sent"),
    [((4_000, 1_000), False, (2_048, 512, "image/jpeg")), ((900, 900), True, (900, 900, "image/png"))],
)
def test_large_pictures_are_made_smaller(
    qapp: QApplication, size: tuple[int, int], transparent: bool, sent: tuple[int, int, str]
) -> None:
    formats = QImage.Format
    image = QImage(*size, formats.Format_ARGB32 if transparent else formats.Format_RGB32)
    image.fill(QColor("#00000000" if transparent else "#112233"))
    picture = encode_picture(image, "p")
    assert (picture.width, picture.height, picture.media_type) == sent
    assert QImage.fromData(picture.data).width() == sent[0]


@pytest.fixture(autouse=True)
def empty_clipboard() -> Iterator[None]:
    yield
    QApplication.clipboard().clear()
