"""The bar where it cannot move: plain lines."""

import pytest

from launcher.cli.bar import Bar


def test_why_it_waits_is_told_at_once(capsys: pytest.CaptureFixture[str]) -> None:
    bar = Bar()
    bar.show("Downloading", 1, 10)
    bar.show("Waiting", 1, 10, note="The server did not answer. Again in 2 s.")
    bar.show("Waiting", 1, 10, note="The server did not answer. Again in 1 s.")
    bar.show("Downloading", 2, 10)
    assert capsys.readouterr().err == "Waiting: 10 %  1 bytes of 10 bytes  The server did not answer. Again in 2 s.\n"
