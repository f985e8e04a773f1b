"""Addresses: their hosts, their redirects, and the parts that may be shown."""

import httpx
import pytest

from launcher.base.errors import BadOption, Refused
from launcher.base.http import fetch_json_pages
from launcher.base.net import is_sent_token, redirect_target, strip_secrets, url_origin


def test_two_spellings_of_an_address_are_recognised_as_one_server() -> None:
    assert url_origin("HTTPS://Hub.example/a") == url_origin("https://hub.example:443/b")
    assert url_origin("http://hub.example/") != url_origin("https://hub.example/")


@pytest.mark.parametrize(
    ("url", "target", "is_sent"),
    [
        ("https://hub.example/a", "https://hub.example:443/b", True),
        ("http://hub.example/a", "https://hub.example/a", True),
        ("http://hub.example:8080/a", "https://hub.example/a", False),
        ("https://hub.example/a", "https://hub.example:444/a", False),
        ("https://mirror.example/a", "https://hub.example/a", False),
        ("https://hub.example/a", "https://hub.example.evil/a", False),
    ],
)
def test_a_token_is_sent_to_its_own_server_alone(url: str, target: str, is_sent: bool) -> None:
    assert is_sent_token(url, target) == is_sent


@pytest.mark.parametrize("url", ["https://a.example/x", "HTTPS://a.example/x"])
@pytest.mark.parametrize("location", ["http://a.example/y", "Http://b.example/", "ftp://a.example/"])
def test_no_redirect_leads_from_https_to_http(url: str, location: str) -> None:
    with pytest.raises(Refused, match="to an unencrypted address"):
        redirect_target(url, location)


def test_other_redirects_are_followed() -> None:
    assert redirect_target("https://a.example/x", "HTTPS://b.example/y") == "https://b.example/y"
    assert redirect_target("http://a.example/x", "y?z") == "http://a.example/y?z"


@pytest.mark.parametrize("location", ["http://[oops", "http://a:b/", "http://a:99999/"])
def test_a_redirect_to_an_invalid_address_is_refused(location: str) -> None:
    with pytest.raises(Refused, match="redirects to an invalid address"):
        redirect_target("http://a.example/x", location)


def test_secrets_are_hidden_in_shown_addresses() -> None:
    assert strip_secrets("https://me:secret@a.example:1/x?signature=s#y") == "https://a.example:1/x"
    with pytest.raises(BadOption):
        strip_secrets("http://[::1")


def test_json_is_not_fetched_without_encryption_if_https_is_required(monkeypatch: pytest.MonkeyPatch) -> None:
    urls: list[str] = []

    def answer(_transport: httpx.HTTPTransport, request: httpx.Request) -> httpx.Response:
        urls.append(str(request.url))
        return httpx.Response(302, headers={"Location": "http://b.example/"}, request=request)

    monkeypatch.setattr(httpx.HTTPTransport, "handle_request", answer)
    with pytest.raises(Refused, match="to an unencrypted address"):
        next(fetch_json_pages("https://a.example/"))
    assert urls == ["https://a.example/"]
