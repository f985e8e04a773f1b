"""A fake GitHub with llama.cpp's releases: `python releases.py` prints its addresses as JSON and serves until its
standard input ends.

Like the real one it lists releases in pages with a Link header, has `releases/latest` and `releases/tags/TAG`, an ETag
for each answer (304 costs nothing), 60 requests an hour without a token, `digest` and `state` of each asset, and it
redirects a download to a signed address on another server, here another port, which refuses requests with a token.

POST /publish makes a release, with archives of engines: {"tag", "builds": ["cpu", "cuda-13.4", ...]} and, optional:

    "platform"   ubuntu-x64, or win-x64 (zip archives without a top folder)
    "devices"    what the engine of a build lists: {"vulkan": ["Vulkan0: ..."]}; CUDA only with its runtime beside it
    "says"       the build number that --version prints
    "program"    the text of llama-server in place of one that runs the command {"command"}
    "asset"      {NAME: {"state", "digest", "size", "lacking": true, "hex": what it is in place of an archive}}
    "latest"     true: releases/latest is this one; a tag vX.Y.Z has the asset nightly-tag.txt with the text "points_at"

An address that ends in /fault/NAME[,NAME] has these faults: limited (no requests are left), slow-down (429 with
Retry-After 7) or slow-down=SECONDS, bad-token, no-json, odd, odd-address (of assets), odd-link (to the next page),
other-tag (than was asked for), no-latest, wrong-bytes, page (HTML in place of an asset), breaks-off (in the
middle of each download), STATUS.

GET /requests returns the requests since the last such call, POST /forget removes all releases.
"""

import hashlib
import io
import json
import re
import sys
import tarfile
import threading
import time
import traceback
import zipfile
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any
from urllib.parse import parse_qs, urlsplit

ADDRESSES: dict[str, str] = {}
REQUESTS: list[dict[str, Any]] = []
RELEASES: dict[str, dict[str, Any]] = {}
FILES: dict[str, bytes] = {}
USED = 0
PROGRAM = """#!/bin/sh
here=$(dirname "$0")
case " $* " in
*" --version "*) echo "version: 0.6.0-dev (build {says}, commit 0123abc)" >&2; exit 0 ;;
*" --list-devices "*)
    echo "Available devices:"
    {devices}
    exit 0 ;;
esac
exec {command} "$@"
"""


def program(request: dict[str, Any], label: str) -> bytes:
    """Return the text of a build's llama-server. Without its runtime, CUDA silently lists no GPU."""
    if "program" in request:
        return str(request["program"]).encode()
    lines = [f'echo "  {line}"' for line in request.get("devices", {}).get(label, [])] or ['echo "  (none)"']
    listing = "; ".join(lines)
    if label.startswith("cuda"):
        runtime = "cudart64.dll" if request.get("platform", "").startswith("win") else "libcudart.so"
        listing = f'if [ -e "$here/{runtime}" ]; then {listing}; else echo "  (none)"; fi'
    says = request.get("says", request["tag"][1:])
    return PROGRAM.format(says=says, devices=listing, command=request["command"]).encode()


def pack_tar(top: str, members: dict[str, bytes]) -> bytes:
    """Pack files below a top folder. A library also gets a link to it without its version, as llama.cpp's have."""
    packed = io.BytesIO()
    with tarfile.open(fileobj=packed, mode="w:gz") as archive:
        for name, content in members.items():
            info = tarfile.TarInfo(f"{top}/{name}")
            info.size, info.mode = len(content), 0o755
            archive.addfile(info, io.BytesIO(content))
            if name.endswith(".so.0.9"):
                link = tarfile.TarInfo(f"{top}/{name.removesuffix('.0.9')}")
                link.type, link.linkname = tarfile.SYMTYPE, name
                archive.addfile(link)
    return packed.getvalue()


def pack_zip(members: dict[str, bytes]) -> bytes:
    packed = io.BytesIO()
    with zipfile.ZipFile(packed, "w", zipfile.ZIP_DEFLATED) as archive:
        for name, content in members.items():
            info = zipfile.ZipInfo(name)
            info.compress_type, info.external_attr = zipfile.ZIP_DEFLATED, 0o755 << 16
            archive.writestr(info, content)
    return packed.getvalue()


def make_archives(request: dict[str, Any]) -> dict[str, bytes]:
    """Make a release's files by their names."""
    tag, (system, arch) = request["tag"], request.get("platform", "ubuntu-x64").split("-")
    if "points_at" in request:
        return {"nightly-tag.txt": f"{request['points_at']}\n".encode()}
    files: dict[str, bytes] = {}
    for label in request["builds"]:
        infix = "" if label == "cpu" and system == "ubuntu" else f"{label}-"
        name = f"llama-{tag}-bin-{system}-{infix}{arch}"
        text = program(request, label)
        if system == "win":
            files[f"{name}.zip"] = pack_zip({"llama-server.exe": text, "ggml.dll": b"ggml", "LICENSE": b"MIT"})
        else:
            members = {"llama-server": text, "libggml.so.0.9": b"ggml", "LICENSE": b"MIT"}
            files[f"{name}.tar.gz"] = pack_tar(f"llama-{tag}", members)
        if label.startswith("cuda") and system == "win":
            files[f"cudart-llama-bin-win-{label}-{arch}.zip"] = pack_zip({"cudart64.dll": b"cudart"})
        elif label.startswith("cuda"):
            runtime = f"cudart-llama-{tag}-bin-ubuntu-{label}-{arch}"
            files[f"{runtime}.tar.gz"] = pack_tar(runtime, {"libcudart.so.0.9": b"cudart"})
    return files


def publish(request: dict[str, Any]) -> None:
    """Publish a release: store its files, and describe it as GitHub's API does."""
    tag, changes, assets = request["tag"], request.get("asset", {}), []
    for name, made in make_archives(request).items():
        change = changes.get(name, {})
        if change.pop("lacking", False):
            continue
        data = bytes.fromhex(change.pop("hex")) if "hex" in change else made
        FILES[f"{tag}/{name}"] = data
        values = {"name": name, "size": len(data), "digest": f"sha256:{hashlib.sha256(data).hexdigest()}"}
        assets.append(values | {"state": "uploaded"} | change)
    RELEASES[tag] = {
        "tag_name": tag,
        "draft": False,
        "prerelease": tag.startswith("b"),
        "published_at": request.get("published_at", f"2026-11-{len(RELEASES) + 1:02}T12:00:00Z"),
        "assets": assets,
        "body": "What is new",
    }


class Handler(BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"
    disable_nagle_algorithm = True

    def log_message(self, *_: object) -> None:
        pass

    def do_POST(self) -> None:
        body = self.rfile.read(int(self.headers.get("Content-Length", 0)))
        if self.path == "/forget":
            RELEASES.clear()
            FILES.clear()
        else:
            publish(json.loads(body))
        self.answer(200, b"{}")

    def do_GET(self) -> None:
        parts = urlsplit(self.path)
        if parts.path == "/requests":
            result, REQUESTS[:] = json.dumps(REQUESTS), []
            return self.answer(200, result.encode())
        here = f"http://127.0.0.1:{self.server.server_port}"
        server = next(name for name, address in ADDRESSES.items() if address == here)
        request = {
            "server": server,
            "target": self.path,
            **{name.lower(): value for name, value in self.headers.items()},
        }
        fault = re.match(r"/fault/([^/]+)(/.*)", parts.path)
        self.prefix, path = (f"/fault/{fault[1]}", fault[2]) if fault else ("", parts.path)
        self.faults = set(fault[1].split(",")) if fault else set()
        if server == "store":
            REQUESTS.append(request)
            return self.store(path.removeprefix("/"))
        if path.startswith("/download/"):
            REQUESTS.append(request)
            signed = f"{ADDRESSES['store']}{self.prefix}/{path.removeprefix('/download/')}?signature=s3cret"
            return self.answer(302, b"", {"Location": signed})
        return self.api(path, parse_qs(parts.query), request)

    def api(self, path: str, query: dict[str, list[str]], request: dict[str, Any]) -> None:
        global USED
        REQUESTS.append(request)
        limit = {"x-ratelimit-limit": "60", "x-ratelimit-reset": str(int(time.time()) + 1800)}
        status = next(filter(str.isdecimal, self.faults), None)
        if status:
            return self.answer(int(status), b"{}", limit)
        if not self.headers.get("User-Agent") or "vnd.github" not in self.headers.get("Accept", ""):
            return self.answer(403, b"{}", limit)
        if "limited" in self.faults:
            return self.answer(403, b'{"message": "rate limit"}', limit | {"x-ratelimit-remaining": "0"})
        if slow := next((fault for fault in self.faults if fault.startswith("slow-down")), None):
            wait = slow.partition("=")[2] or "7"
            return self.answer(429, b"{}", limit | {"Retry-After": wait})
        if "bad-token" in self.faults and "Authorization" in self.headers:
            return self.answer(401, b'{"message": "Bad credentials"}', limit)
        status_code, data, more = self.content(path, query)
        body = b"<html>" if "no-json" in self.faults else json.dumps(data).encode()
        etag = f'W/"{hashlib.sha256(body).hexdigest()}"'
        headers = limit | more | {"ETag": etag, "Content-Type": "application/json; charset=utf-8"}
        if status_code == 200 and self.headers.get("If-None-Match") == etag:
            return self.answer(304, b"", {**headers, "x-ratelimit-remaining": str(60 - USED)})
        USED += 1
        return self.answer(status_code, body, {**headers, "x-ratelimit-remaining": str(max(1, 60 - USED))})

    def content(self, path: str, query: dict[str, list[str]]) -> tuple[int, Any, dict[str, str]]:
        base = "/repos/ggml-org/llama.cpp/releases"
        if "odd" in self.faults:
            return 200, {"releases": "none"}, {}
        listed = [self.described(release) for release in reversed(RELEASES.values())]
        if path == f"{base}/latest":
            found = [release for release in listed if not release["prerelease"] and "no-latest" not in self.faults]
        elif path.startswith(f"{base}/tags/"):
            found = [release for release in listed if release["tag_name"] == path.removeprefix(f"{base}/tags/")]
            found = [release | {"tag_name": "../../x"} for release in found] if "other-tag" in self.faults else found
        elif path == base:
            size, page = (int(query.get(name, [usual])[0]) for name, usual in (("per_page", "30"), ("page", "1")))
            following = f"{ADDRESSES['api']}{self.prefix}{base}?per_page={size}&page={page + 1}"
            following = "http://[oops" if "odd-link" in self.faults else following
            more = (
                {"Link": f'<{following}>; rel="next", <{following}>; rel="last"'} if page * size < len(listed) else {}
            )
            return 200, listed[(page - 1) * size : page * size], more
        else:
            found = []
        return (200, found[0], {}) if found else (404, {"message": "Not Found"}, {})

    def described(self, release: dict[str, Any]) -> dict[str, Any]:
        address = f"{ADDRESSES['api']}{self.prefix}/download/{release['tag_name']}"
        address = "http://[oops" if "odd-address" in self.faults else address
        assets = [asset | {"browser_download_url": f"{address}/{asset['name']}"} for asset in release["assets"]]
        return release | {"assets": assets}

    def store(self, name: str) -> None:
        if "Authorization" in self.headers:
            return self.answer(400, b"a token that is not for this server")
        data = FILES.get(name)
        if data is None:
            return self.answer(404, b"")
        if "page" in self.faults:
            return self.answer(200, b"<html>down for maintenance</html>", {"Content-Type": "text/html"})
        if "wrong-bytes" in self.faults:
            data = bytes([data[0] ^ 255]) + data[1:]
        headers = {"ETag": f'"{hashlib.md5(data, usedforsecurity=False).hexdigest()}"', "Accept-Ranges": "bytes"}
        wanted = re.fullmatch(r"bytes=(\d+)-(\d*)", self.headers.get("Range", ""))
        if not wanted:
            return self.answer(200, data, headers)
        first, last = int(wanted[1]), min(int(wanted[2] or len(data)), len(data) - 1)
        if first >= len(data):
            return self.answer(416, b"", {"Content-Range": f"bytes */{len(data)}"})
        headers["Content-Range"] = f"bytes {first}-{last}/{len(data)}"
        return self.answer(206, data[first : last + 1], headers)

    def answer(self, status: int, body: bytes, headers: dict[str, str] | None = None) -> None:
        self.send_response(status)
        for name, value in (headers or {}).items():
            self.send_header(name, value)
        self.send_header("Content-Length", str(len(body)))
        self.end_headers()
        half = "breaks-off" in getattr(self, "faults", ()) and status in (200, 206) and "ETag" in (headers or {})
        half = half and "x-ratelimit-limit" not in (headers or {})
        self.wfile.write(body[: len(body) // 2] if half else body)
        self.close_connection = self.close_connection or half


class Server(ThreadingHTTPServer):
    daemon_threads = True

    def handle_error(self, *_: object) -> None:
        if not isinstance(sys.exception(), ConnectionError):  # the client has closed the connection
            traceback.print_exc()


def main() -> None:
    """Serve until standard input ends."""
    servers = {name: Server(("127.0.0.1", 0), Handler) for name in ("api", "store")}
    for name, server in servers.items():
        ADDRESSES[name] = f"http://127.0.0.1:{server.server_port}"
        threading.Thread(target=server.serve_forever, daemon=True).start()
    print(json.dumps(ADDRESSES), flush=True)
    sys.stdin.read()


if __name__ == "__main__":
    main()
