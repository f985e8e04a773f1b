"""Addresses: their hosts, their redirects, and the parts that may be shown."""

import httpx
import pytest

from launcher.base.errors import BadOption, Refused
from launcher.base.http import fetch_json_pages
from launcher.base.net import find_proxy, redirect_target, strip_secrets, url_origin


def test_two_spellings_of_an_address_are_recognised_as_one_server() -> None:
    assert url_origin("HTTPS://Hub.example/a") == url_origin("https://hub.example:443/b")
    assert url_origin("http://hub.example/") != url_origin("https://hub.example/")


def test_a_proxy_variable_in_capitals_is_used(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("https_proxy", "http://proxy.invalid:1")
    assert find_proxy("HTTPS://example.org/") == find_proxy("https://example.org/") == "http://proxy.invalid:1"


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
