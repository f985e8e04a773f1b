"""Proxies for httpx: one place, `find_proxy`, decides which proxy a request has.

httpx itself opens every proxy of the environment at once, so an unusable one would break requests that use another. Its
own SOCKS (httpcore 1.0) waits for a silent proxy without a limit, so that of httpx-socks is used.
"""

import ssl
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import httpx
import httpx_socks
import python_socks

from launcher.base.net import Proxy, find_proxy


class ProxyTransport(httpx.BaseTransport):
    """Sends each request, a redirected one too, through the environment's proxy for its address."""

    def __init__(self, tls: ssl.SSLContext) -> None:
        self._tls = tls
        self._transports: dict[Proxy | None, httpx.BaseTransport] = {}

    def handle_request(self, request: httpx.Request) -> httpx.Response:
        """Send a request. Raises ProxyUnusable, and what httpx raises."""
        proxy = find_proxy(str(request.url))
        if proxy not in self._transports:
            self._transports[proxy] = (
                _SocksTransport(**_socks_options(proxy, self._tls))
                if proxy is not None and proxy.kind == "socks5"
                else httpx.HTTPTransport(verify=self._tls, trust_env=False, proxy=_http_proxy(proxy))
            )
        return self._transports[proxy].handle_request(request)

    def close(self) -> None:
        """Close all connections."""
        for transport in self._transports.values():
            transport.close()


def open_async_transport(proxy: Proxy | None, tls: ssl.SSLContext) -> httpx.AsyncBaseTransport:
    """Return a transport of an AsyncClient for one proxy, or for none."""
    if proxy is not None and proxy.kind == "socks5":
        return _AsyncSocksTransport(**_socks_options(proxy, tls))
    return httpx.AsyncHTTPTransport(verify=tls, trust_env=False, proxy=_http_proxy(proxy))


class _SocksTransport(httpx_socks.SyncProxyTransport):
    def handle_request(self, request: httpx.Request) -> httpx.Response:
        with _errors_of_httpx(request):
            return super().handle_request(request)


class _AsyncSocksTransport(httpx_socks.AsyncProxyTransport):
    async def handle_async_request(self, request: httpx.Request) -> httpx.Response:
        with _errors_of_httpx(request):
            return await super().handle_async_request(request)


def _http_proxy(proxy: Proxy | None) -> httpx.Proxy | None:
    if proxy is None:
        return None
    login = None if proxy.user is None else (proxy.user, proxy.password)
    return httpx.Proxy(f"http://{proxy.netloc}", auth=login)


def _socks_options(proxy: Proxy, tls: ssl.SSLContext) -> dict[str, Any]:
    return {
        "proxy_type": python_socks.ProxyType.SOCKS5,
        "proxy_host": proxy.host,
        "proxy_port": proxy.port,
        "username": proxy.user,
        "password": proxy.password,
        "verify": tls,
        "trust_env": False,
    }


@contextmanager
def _errors_of_httpx(request: httpx.Request) -> Iterator[None]:
    """Turn errors while a connection through a SOCKS proxy is made into those of httpx."""
    try:
        yield
    except python_socks.ProxyError as error:
        raise httpx.ProxyError(str(error), request=request) from error
    except TimeoutError as error:
        raise httpx.ConnectTimeout(str(error), request=request) from error
    except OSError as error:
        raise httpx.ConnectError(str(error), request=request) from error
