"""Errors as users and scripts see them."""

import inspect

import pytest

from launcher.base import errors
from launcher.base.errors import CrashLoop, LauncherError, PortBusy, Refused, SettingsFailed

KINDS = [kind for _, kind in inspect.getmembers(errors, inspect.isclass) if issubclass(kind, LauncherError)]


def test_the_text_says_what_happened_and_then_what_to_do() -> None:
    assert str(PortBusy("Port 8080 is taken.", "Choose another.")) == "Port 8080 is taken. Choose another."


def test_the_text_ends_after_the_title_without_a_hint() -> None:
    assert str(PortBusy("Port 8080 is taken.")) == "Port 8080 is taken."


def test_facts_are_separate_from_the_sentence() -> None:
    error = PortBusy("Port 8080 is taken.", port=8080)
    assert error.facts == {"port": 8080}
    assert "{" not in str(error)


def test_passwords_in_addresses_are_hidden() -> None:
    address = "http://user:hunter2@server.example/v1"
    error = Refused(f"{address} refused.", f"Run `chat --url {address}`.", where=address, port=80)
    assert "hunter2" not in f"{error} {error.args} {dict(error.facts)}"
    assert error.title == "http://***@server.example/v1 refused."
    assert error.facts["port"] == 80


def test_an_at_sign_in_a_path_is_not_a_login() -> None:
    assert Refused("https://server.example/@user/model is gone.").title.startswith("https://server.example/@user/")


def test_a_refused_error_has_the_http_status() -> None:
    error = Refused("No.", status=404, where="/nope")
    assert error.status == 404
    assert error.facts == {"status": 404, "where": "/nope"}


def test_every_error_can_be_caught_by_the_base_class_and_keeps_its_text() -> None:
    for kind in KINDS:
        if kind not in (CrashLoop, SettingsFailed):
            with pytest.raises(LauncherError, match=r"^It happened\. Do this\.$"):
                raise kind("It happened.", "Do this.")


@pytest.mark.parametrize(
    "error",
    [
        CrashLoop(3, 9.6, PortBusy("Port 80 is taken.", "Choose another.", port=80)),
        SettingsFailed(PortBusy("Port 80 is taken.", "Choose another.", port=80)),
    ],
)
def test_errors_that_wrap_another_keep_its_reason_hint_and_facts(error: CrashLoop | SettingsFailed) -> None:
    assert error.title.endswith("Port 80 is taken.")
    assert error.hint == "Choose another."
    assert error.facts["port"] == 80
    assert error.facts["reason"] == error.reason.code == "port_busy"


def test_codes_are_unique() -> None:
    codes = [kind.code for kind in KINDS]
    assert len(set(codes)) == len(codes) > 10
