"""Proofs of downloads on Windows: models and their removal, the queue, engines (see ../wine).

python.exe fetch.py FAKES STARTER.EXE      FAKES: the folder of fake servers; STARTER.EXE runs the script appended to it
"""
# ruff: noqa: S101, S310

import hashlib
import io
import json
import os
import shutil
import subprocess
import sys
import time
import urllib.request
import zipfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from launcher.base.paths import HOME_VARIABLE
from launcher.engine.demo import unpack_demo_model

sys.path.insert(0, str(Path(__file__).parent))  # Python's embeddable build leaves it out
from harness import launcher, proof, run, run_json

FAKES, STARTER = Path(sys.argv[1]).resolve(), Path(sys.argv[2]).resolve()
REPO, FILE = "maker/Demo-MTP-GGUF", "Demo-Q8_0.gguf"
ENGINE = """
import runpy, sys
if "--version" in sys.argv:
    print("version: 0.6.0-dev (build 11434, commit 0123abc)", file=sys.stderr)
elif "--list-devices" in sys.argv:
    print("Available devices:\\n  (none)")
else:
    sys.argv[0] = {builtin!r}
    runpy.run_path({builtin!r}, run_name="__main__")
"""


@contextmanager
def server(name: str, *arguments: str) -> Iterator[dict[str, str]]:
    """Run one of the fake servers and yield its addresses."""
    process = subprocess.Popen(
        [sys.executable, str(FAKES / f"{name}.py"), *arguments], stdin=subprocess.PIPE, stdout=subprocess.PIPE
    )
    try:
        assert process.stdout is not None
        yield json.loads(process.stdout.readline())
    finally:
        process.kill()
        process.communicate(timeout=100)


def events(output: bytes) -> list[dict[str, Any]]:
    """Return the JSON values that a verb printed, one a line."""
    return [json.loads(line) for line in output.decode("utf-8").splitlines()]


def home(*parts: str) -> Path:
    """Return a path beside the launcher's home."""
    return Path(os.environ[HOME_VARIABLE]).parent.joinpath(*parts)


@proof("pull from a hub, list, verify, serve by its name, remove")
def _pull() -> str:
    folder = home("hub", *REPO.split("/"))
    folder.mkdir(parents=True)
    shutil.copy(unpack_demo_model(), folder / FILE)
    with server("hub", str(home("hub"))) as addresses:
        code, output = launcher("pull", f"{REPO}:{FILE}", "--json", HF_ENDPOINT=addresses["hub"])
        assert code == 0, output
    done = events(output)[-1]
    assert done["event"] == "done", done
    path = Path(done["path"])
    assert hashlib.sha256(path.read_bytes()).hexdigest() == done["sha256"]
    listed = json.dumps(run_json("models", "list"))
    assert FILE in listed, listed
    code, output = launcher("models", "verify", str(path), "--json")
    assert code == 0, output
    with path.open("r+b") as file:
        file.seek(-1, 2)
        file.write(b"!")
    code, output = launcher("models", "verify", str(path), "--json")
    assert code == 1, output
    code, output = launcher("models", "remove", str(path), "--yes")
    assert code == 0, output
    assert not path.exists()
    return f"{done['bytes']:,} bytes as {path.relative_to(home())}"


@proof("a download that is killed goes on where it was, and ends whole")
def _resume() -> str:
    data = unpack_demo_model().read_bytes()
    home("files").mkdir()
    home("files", "demo.gguf").write_bytes(data)
    sha256 = hashlib.sha256(data).hexdigest()
    target = home("got é", "demo.gguf")
    with server("files", str(home("files"))) as addresses:
        arguments = [f"{addresses['origin']}/a/slow=2000000/demo.gguf", "--sha256", sha256, "--to", str(target.parent)]
        process = subprocess.Popen(
            [sys.executable, "-m", "launcher", "pull", *arguments, "--json"], stdout=subprocess.PIPE
        )
        assert process.stdout is not None
        for line in process.stdout:
            if json.loads(line).get("done_bytes", 0) > len(data) // 4:
                break
        process.kill()
        process.communicate(timeout=100)
        assert not target.exists()
        code, output = launcher("pull", *arguments, "--json")
        assert code == 0, output
        with urllib.request.urlopen(f"{addresses['origin']}/record/a") as answer:
            sent = json.load(answer)["sent_bytes"]
    done = events(output)[-1]
    assert done["resumed_bytes"] > len(data) // 5, done
    assert hashlib.sha256(target.read_bytes()).hexdigest() == sha256
    assert [each.name for each in target.parent.iterdir()] == ["demo.gguf"]
    return f"{done['resumed_bytes']:,} of {len(data):,} bytes were kept; the server sent {sent:,}"


@proof("a file that is not what it should be is kept aside and never used")
def _wrong() -> str:
    with server("files", str(home("files"))) as addresses:
        url = f"{addresses['origin']}/b/none/demo.gguf"
        code, output = launcher("pull", url, "--sha256", "0" * 64, "--to", str(home("wrong")), "--json")
    assert code == 1, output
    names = sorted(each.name for each in home("wrong").iterdir())
    assert names == ["demo.gguf.bad", "demo.gguf.bad.txt"], names
    return str(events(output)[-1]["error"]["message"])


@proof("a file that is not there leaves nothing behind, ten times")
def _missing() -> str:
    with server("files", str(home("files"))) as addresses:
        for n in range(10):
            url = f"{addresses['origin']}/c{n}/404/demo.gguf"
            code, output = launcher("pull", url, "--sha256", "0" * 64, "--to", str(home("missing")), "--json")
            assert code == 1, output
            left = sorted(each.name for each in home("missing").iterdir()) if home("missing").exists() else []
            assert left == [], left
    return str(events(output)[-1]["error"]["message"])


@proof("the queue: added in one process, worked by another")
def _queue() -> str:
    with server("hub", str(home("hub"))) as addresses:
        environment = {"HF_ENDPOINT": addresses["hub"]}
        code, output = launcher("downloads", "add", f"{REPO}:{FILE}", "--json", **environment)
        assert code == 0, output
        code, output = launcher("downloads", "run", "--json", **environment)
        assert code == 0, output
    code, output = launcher("downloads", "list", "--json")
    assert b'"done"' in output, output
    return f"{len(output)} bytes of list"


@proof("an engine is installed from a release, tested and served; another one, and back")
def _engine() -> str:
    builtin = next(Path(path) / "launcher/engine/builtin.py" for path in sys.path if (Path(path) / "launcher").is_dir())
    script = io.BytesIO()
    with zipfile.ZipFile(script, "w") as archive:
        archive.writestr("__main__.py", ENGINE.format(builtin=str(builtin)))
    program = STARTER.read_bytes() + f'#!"{sys.executable}"\n'.encode() + script.getvalue()
    packed = io.BytesIO()
    with zipfile.ZipFile(packed, "w", zipfile.ZIP_DEFLATED) as archive:
        archive.writestr("llama-server.exe", program)
        archive.writestr("ggml.dll", b"ggml")
    with server("releases") as addresses:
        api = next(iter(addresses.values()))
        for tag in ("b11434", "b11435"):
            name = f"llama-{tag}-bin-win-cpu-x64.zip"
            release = {
                "tag": tag,
                "builds": ["cpu"],
                "platform": "win-x64",
                "command": "none",
                "asset": {name: {"hex": packed.getvalue().hex()}},
            }
            request = urllib.request.Request(f"{api}/publish", json.dumps(release).encode(), method="POST")
            urllib.request.urlopen(request).close()
        began_s = time.monotonic()
        environment = {"MTP_LAUNCHER_GITHUB_API": api}
        code, output = launcher("engine", "install", "b11434", "--json", **environment)
        assert code == 0, output
        took_s = time.monotonic() - began_s
        code, output = launcher("engine", "install", "b11435", "--json", **environment)
        assert code == 1, output  # the archive's engine reports another build number
    listed = json.dumps(run_json("engine", "list"))
    assert "b11434" in listed, listed
    assert "b11435" not in listed, listed
    problem = events(output)[-1]["error"]["message"]
    return f"installed and tested in {took_s:.1f} s; the other: {problem}"


run()
