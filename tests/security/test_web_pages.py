"""A web page in the user's browser, against the gateway and the real engine as `serve` runs them."""

import httpx
import pytest

from tests.security.conftest import Served

EVIL = "https://evil.example"
PATHS = ("/v1/models", "/slots", "/props", "/metrics", "/completion", "/v1/chat/completions", "/tokenize")


@pytest.fixture
def page(demo_server: Served) -> httpx.Client:
    return httpx.Client(base_url=demo_server.url, headers={"Origin": EVIL}, trust_env=False)


@pytest.mark.parametrize("path", PATHS)
@pytest.mark.parametrize("method", ["GET", "POST"])
def test_requests_of_foreign_pages_are_refused_and_unreadable(page: httpx.Client, method: str, path: str) -> None:
    with page:
        answer = page.request(method, path, content=b"{}" if method == "POST" else None)
    assert answer.status_code == 403
    assert "Access-Control-Allow-Origin" not in answer.headers


def test_preflight_requests_of_foreign_pages_are_refused(page: httpx.Client) -> None:
    asks = {"Access-Control-Request-Method": "POST", "Access-Control-Request-Headers": "authorization, content-type"}
    with page:
        answer = page.options("/v1/chat/completions", headers=asks)
    assert answer.headers.get("Access-Control-Allow-Origin") not in ("*", EVIL)


@pytest.mark.parametrize(
    "origin", ["null", "http://localhost.evil.example", "https://127.0.0.1.evil.example", "file://"]
)
def test_origins_similar_to_this_computer_are_foreign(demo_server: Served, origin: str) -> None:
    with httpx.Client(base_url=demo_server.url, headers={"Origin": origin}, trust_env=False) as client:
        answer = client.get("/health")
    assert answer.headers.get("Access-Control-Allow-Origin") not in ("*", origin)


def test_a_foreign_page_with_the_key_gets_no_answer(page: httpx.Client, demo_server: Served) -> None:
    with page:
        answer = page.get("/v1/models", headers={"Authorization": f"Bearer {demo_server.api_key}"})
    assert answer.status_code == 403
    assert "Access-Control-Allow-Origin" not in answer.headers


@pytest.mark.parametrize("host", ["evil.example", "evil.example:80", "localhost", ""])
def test_dns_rebinding_gets_no_answer(demo_server: Served, host: str) -> None:
    """DNS rebinding makes the page same-origin, so CORS does not stop it; its host name and the missing key do."""
    with httpx.Client(base_url=demo_server.url, headers={"Host": host}, trust_env=False) as client:
        statuses = {path: client.get(path).status_code for path in ("/v1/models", "/slots", "/props", "/metrics")}
    assert set(statuses.values()) == {401 if host == "localhost" else 421}


@pytest.mark.parametrize("path", ["/", "/index.html"])
def test_the_page_of_the_engine_contains_no_key_and_cannot_be_framed(demo_server: Served, path: str) -> None:
    with httpx.Client(base_url=demo_server.url, trust_env=False) as client:
        answer = client.get(path)
        assert client.get(path, headers={"Origin": EVIL}).status_code == 403
        assert client.get("/props").status_code == 401
    assert answer.status_code == 200
    assert demo_server.api_key not in answer.text
    assert "Access-Control-Allow-Origin" not in answer.headers


@pytest.mark.parametrize("path", ["/no.js", "/etc/passwd", "/../launcher", "/.well-known/none"])
def test_other_paths_need_the_key(demo_server: Served, path: str) -> None:
    with httpx.Client(base_url=demo_server.url, trust_env=False) as client:
        assert client.get(path).status_code in (400, 401, 404)


@pytest.mark.parametrize("key", ["x", "Bearer", "' or 1=1", "k" * 43, "k" * 8_000])
def test_a_wrong_key_is_refused(demo_server: Served, key: str) -> None:
    with httpx.Client(base_url=demo_server.url, trust_env=False) as client:
        for headers in ({"Authorization": f"Bearer {key}"}, {"X-Api-Key": key}):
            assert client.get("/v1/models", headers=headers).status_code in (400, 401, 431)
