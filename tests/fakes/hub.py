"""A fake Hugging Face hub: `python hub.py FOLDER` serves FOLDER/OWNER/NAME/FILE, and prints its addresses as JSON.

Like the real one it answers for a .gguf file with its size, sha256 and commit and a redirect to another server, here
another port, which refuses requests that carry a token. Other files come from the hub itself. Used as a proxy, it
answers for any host. GET /requests returns the requests since the last such call.

It lists the files of a repository, two entries a page, and the commit of its main branch, and finds repositories with
GGUF files by words in their names. A file that is a Git LFS pointer is listed with the size and the sha256 that it
names, so a repository may seem to have files of any size.

The answer depends only on the path, so that one hub serves all tests. The repositories `gated/...` need a token and
consent (`hf_consent` has given it), `secret/...` any valid token (`hf_...`), `old/...` is called `new/...` now,
`round/...` redirects in a circle. An endpoint that ends in /fault/NAME[,NAME] has these faults:

    ignores-range   the whole file in place of a range           wrong-range     another range than asked for
    changes         another content from the second range on     breaks-off      half of what was announced
    weak            a weak ETag, and changes                     compressed      a content encoding nobody asked for
    clips           never more than 1,000 bytes at a time        generous        everything from where the range begins
    no-size         a stream without a length                    empty           a file of no bytes
    no-total        ranges without the file's size               long            more bytes than announced
    no-metadata     a redirect without size and hash             gone            the content is no longer there
    no-json         a page in place of JSON                      endless         a listing without an end
    elsewhere       the listing goes on on the other server      no-main         a repository without a main branch
    odd-page        a listing that is none                       odd-entry       files of less than no bytes
    no-hash         a GGUF file kept in git, without sha256
    odd-hash        a sha256 that is none                        odd-refs        a commit that is none
    mirror          a permanent redirect to the hub (on the other server's address)
    swaps           other bytes than those of the sha256         stalls          half of a MiB or more, then nothing
    STATUS          that HTTP status for everything, with a Retry-After of 7
    STATUS*N        that one for the first N requests for an address, with a Retry-After of 1
"""

import hashlib
import json
import re
import sys
import threading
import traceback
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from urllib.parse import parse_qs, unquote, urlsplit

ROOT = Path(sys.argv[1])
COMMIT = "5bc3e238d916f48a861bac2f8a1990a0e9b7e98d"
REVISIONS = ("main", COMMIT, "refs/pr/1")
PAGE = 2
POINTER = re.compile(rb"version https://git-lfs\.github\.com/spec/v1\noid sha256:(\S+)\nsize (\d+)\n")
ADDRESSES: dict[str, str] = {}
ASKED: dict[str, int] = {}
REQUESTS: list[dict[str, object]] = []


class Handler(BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"
    disable_nagle_algorithm = True

    def log_message(self, *_: object) -> None:
        pass

    def do_HEAD(self) -> None:
        self.do_GET()

    def do_GET(self) -> None:
        parts = urlsplit(self.path)
        address = f"http://{parts.netloc}" if parts.netloc else f"http://127.0.0.1:{self.server.server_port}"
        self.server_name = "store" if address == ADDRESSES["store"] else "hub"
        if parts.path == "/requests":
            answered, REQUESTS[:] = json.dumps(REQUESTS), []
            ASKED.clear()
            return self.answer(200, answered.encode())
        request = {
            "server": self.server_name,
            "method": self.command,
            "target": self.path,
            **dict(self.headers.items()),
        }
        REQUESTS.append(request)
        fault = re.match(r"/fault/([^/]+)(/.*)", parts.path)
        self.prefix, path = (f"/fault/{fault[1]}", fault[2]) if fault else ("", parts.path)
        self.faults = set(fault[1].split(",")) if fault else set()
        status = next(filter(str.isdecimal, self.faults), None)
        if status:
            return self.answer(int(status), b"", {"Retry-After": "7"})
        if later := next((each for each in self.faults if "*" in each), None):
            status, first = map(int, later.split("*"))
            ASKED[self.path] = ASKED.get(self.path, 0) + 1
            if ASKED[self.path] <= first:
                return self.answer(status, b"", {"Retry-After": "1"})
        if "mirror" in self.faults:
            return self.answer(308, b"", {"Location": ADDRESSES["hub"] + self.path.removeprefix(self.prefix)})
        if path == "/api/models":
            return self.search(parse_qs(parts.query))
        if match := re.fullmatch(r"/api/models/([^/]+)/([^/]+)/(refs|tree/[^/]+)", path):
            return self.api(*match.groups())
        if self.server_name == "store":
            return self.store(ROOT / unquote(path).removeprefix("/"))
        return self.hub(path)

    def hub(self, path: str) -> None:
        match = re.fullmatch(r"/([^/]+)/([^/]+)/resolve/([^/]+)/(.+)", path)
        if not match:
            return self.answer(404, b"no such page")
        owner, name, revision, file = map(unquote, match.groups())
        if self.turned_away(owner, name):
            return None
        if revision not in REVISIONS:
            return self.refuse(404, "RevisionNotFound")
        content = ROOT / owner / name / file
        if not content.is_file():
            return self.refuse(404, "EntryNotFound")
        data = content.read_bytes()
        commit = {"X-Repo-Commit": COMMIT}
        if content.suffix != ".gguf" or "no-hash" in self.faults:
            git = hashlib.sha1(b"blob %d\0" % len(data) + data, usedforsecurity=False).hexdigest()
            return self.answer(200, data, {"ETag": f'"{git}"', **commit})
        known = {"X-Linked-Size": str(len(data)), "X-Linked-Etag": f'"{hashlib.sha256(data).hexdigest()}"', **commit}
        location = {"Location": f"{ADDRESSES['store']}{self.prefix}/{owner}/{name}/{file}?signature=s3cret"}
        return self.answer(302, b"", location | ({} if "no-metadata" in self.faults else known))

    def turned_away(self, owner: str, name: str) -> bool:
        """Answer and return True when the repository is not here, or not for this user."""
        token = self.headers.get("Authorization", "").removeprefix("Bearer ")
        if token and not token.startswith("hf_"):
            self.refuse(401, "")
        elif owner == "gated" and token != "hf_consent":
            self.refuse(403 if token else 401, "GatedRepo")
        elif owner == "secret" and not token:
            self.refuse(401, "RepoNotFound")
        elif owner in ("old", "round"):
            self.answer(307, b"", {"Location": self.path.replace("/old/", "/new/", 1)})
        elif not (ROOT / owner / name).is_dir():
            self.refuse(404 if token else 401, "RepoNotFound")
        else:
            return False
        return True

    def api(self, owner: str, name: str, what: str) -> None:
        if self.server_name == "store":
            if "Authorization" in self.headers:
                return self.answer(400, b"a token that is not for this server")
        elif self.turned_away(owner, name):
            return None
        if "no-json" in self.faults:
            return self.answer(200, b"<html>")
        if what == "refs":
            commit = "v1.0" if "odd-refs" in self.faults else COMMIT
            branches = [{"name": "dev", "ref": "refs/heads/dev", "targetCommit": "0" * 40}]
            if "no-main" not in self.faults:
                branches.append({"name": "main", "ref": "refs/heads/main", "targetCommit": commit})
            return self.answer(200, json.dumps({"branches": branches, "converts": [], "tags": []}).encode())
        if unquote(what.removeprefix("tree/")) not in REVISIONS:
            return self.refuse(404, "RevisionNotFound")
        return self.tree(ROOT / owner / name)

    def search(self, query: dict[str, list[str]]) -> None:
        if "no-json" in self.faults:
            return self.answer(200, b"<html>")
        words = query["search"][0].casefold().split()
        assert query["filter"] == ["gguf"]
        folders = [folder for folder in sorted(ROOT.glob("*/*")) if next(folder.rglob("*.gguf"), None)]
        names = [f"{folder.parent.name}/{folder.name}" for folder in folders]
        found = [
            {"id": name, "downloads": 1_000 * (10 - at), "lastModified": "2026-10-02T08:00:00.000Z", "gated": False}
            for at, name in enumerate(name for name in names if all(word in name.casefold() for word in words))
        ]
        body = {"error": "busy"} if "odd-page" in self.faults else found[: int(query["limit"][0])]
        return self.answer(200, json.dumps(body).encode())

    def tree(self, repository: Path) -> None:
        parts = urlsplit(self.path)
        first = int(parse_qs(parts.query).get("cursor", ["0"])[0])
        items = sorted(repository.rglob("*"))
        page = [self.listed(repository, item) for item in items[first : first + PAGE]]
        on = f"http://127.0.0.1:{self.server.server_port}"
        if "elsewhere" in self.faults:
            on = ADDRESSES["store"]
        following = first if "endless" in self.faults else first + PAGE
        more = {"Link": f'<{on}{parts.path}?recursive=true&cursor={following}>; rel="next"'}
        body = {"error": "busy"} if "odd-page" in self.faults else page
        return self.answer(200, json.dumps(body).encode(), more if following < len(items) else None)

    def listed(self, repository: Path, item: Path) -> dict[str, object]:
        entry: dict[str, object] = {"path": item.relative_to(repository).as_posix(), "oid": "1" * 40, "size": 0}
        if item.is_dir():
            return {"type": "directory", **entry}
        data = item.read_bytes()
        entry |= {"type": "file", "size": len(data)}
        if "odd-entry" in self.faults:
            return entry | {"size": -1}
        if item.suffix == ".gguf":
            pointer = POINTER.fullmatch(data)
            sha256 = pointer[1].decode() if pointer else hashlib.sha256(data).hexdigest()
            size = int(pointer[2]) if pointer else len(data)
            oid = "sha256" if "odd-hash" in self.faults else sha256
            entry |= {"size": size, "lfs": {"oid": oid, "size": size, "pointerSize": 134}, "xetHash": "2" * 64}
        return entry

    def store(self, content: Path) -> None:
        if "Authorization" in self.headers:
            return self.answer(400, b"only one authentication mechanism is allowed")
        if "gone" in self.faults or not content.is_file():
            return self.answer(404, b"")
        data = b"" if "empty" in self.faults else content.read_bytes()
        etag = f'"{hashlib.md5(data, usedforsecurity=False).hexdigest()}"'
        wanted = re.fullmatch(r"bytes=(\d+)-(\d*)", self.headers.get("Range", ""))
        if "swaps" in self.faults:
            data = bytes(byte ^ 255 for byte in data[:1]) + data[1:]
        if wanted and int(wanted[1]) and {"changes", "weak"} & self.faults:
            etag = '"another"'
        etag = f"W/{etag}" if "weak" in self.faults else etag
        headers = {"ETag": etag}
        if "compressed" in self.faults:
            headers["Content-Encoding"] = "gzip"
        if not wanted or "ignores-range" in self.faults or self.headers.get("If-Range", etag) != etag:
            return self.answer(200, data, headers)
        first, last = int(wanted[1]), min(int(wanted[2] or len(data)), len(data) - 1)
        if first >= len(data):
            return self.answer(416, b"", {"Content-Range": f"bytes */{len(data)}"})
        if "clips" in self.faults:
            last = min(last, first + 999)
        if "generous" in self.faults:
            last = len(data) - 1
        reported = first + 1 if "wrong-range" in self.faults else first
        total = "*" if "no-total" in self.faults else len(data)
        return self.answer(
            206, data[first : last + 1], {"Content-Range": f"bytes {reported}-{last}/{total}", **headers}
        )

    def refuse(self, status: int, code: str) -> None:
        self.answer(status, b"no", {"X-Error-Code": code} if code else {})

    def answer(self, status: int, body: bytes, headers: dict[str, str] | None = None) -> None:
        faults = getattr(self, "faults", set())
        self.send_response(status)
        for name, value in (headers or {}).items():
            self.send_header(name, value)
        if {"no-size", "long"} & faults and status in (200, 206):
            self.send_header("Transfer-Encoding", "chunked")
            body = body + b"more" if "long" in faults else body
            body = b"%x\r\n%b\r\n0\r\n\r\n" % (len(body), body)
        else:
            self.send_header("Content-Length", str(len(body)))
        self.end_headers()
        if self.command != "HEAD":
            stalls = "stalls" in faults and len(body) >= 2**20  # headers, which are read first, still come
            half = ("breaks-off" in faults or stalls) and status in (200, 206)
            self.wfile.write(body[: len(body) // 2] if half else body)
            if half and stalls:
                self.rfile.read(1)  # returns when the client leaves
            self.close_connection = self.close_connection or half


class Server(ThreadingHTTPServer):
    daemon_threads = True
    # For requests about all models at once; a connection beyond the queue would wait for seconds.
    request_queue_size = 64

    def handle_error(self, *_: object) -> None:
        if not isinstance(sys.exception(), ConnectionError):  # the client has closed the connection
            traceback.print_exc()


def main() -> None:
    """Serve until standard input ends."""
    servers = {name: Server(("127.0.0.1", 0), Handler) for name in ("hub", "store")}
    for name, server in servers.items():
        ADDRESSES[name] = f"http://127.0.0.1:{server.server_port}"
        threading.Thread(target=server.serve_forever, daemon=True).start()
    print(json.dumps(ADDRESSES), flush=True)
    sys.stdin.read()


if __name__ == "__main__":
    main()
