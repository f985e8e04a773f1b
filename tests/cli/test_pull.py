"""`mtp-launcher pull` and commands on the downloaded model, as a user types them, with the fake hub."""

import errno
import hashlib
import json
import os
import shutil
import signal
import subprocess
import sys
from collections.abc import Iterator
from dataclasses import asdict
from pathlib import Path
from typing import Any

import pytest

from launcher.models.catalogue_load import load_catalogue, shipped_models
from launcher.models.locate import select_model
from tests import forked
from tests.conftest import Hub

REPO, FILE = "cli/Demo-GGUF", "demo-F16.gguf"
DEMO = next(model for model in shipped_models() if model.id == "demo")

pytestmark = pytest.mark.usefixtures("no_engine_here")


def command(*arguments: str | Path) -> list[str]:
    return [sys.executable, "-m", "launcher", *map(str, arguments)]


def run(*arguments: str | Path) -> subprocess.CompletedProcess[str]:
    return forked.run(*arguments)


def lines(*arguments: str | Path, code: int = 0) -> list[dict[str, Any]]:
    result = run(*arguments, "--json")
    assert result.returncode == code, result.stderr + result.stdout
    assert result.stderr == ""
    return [json.loads(line) for line in result.stdout.splitlines()]


@pytest.fixture(autouse=True)
def repository(hub: Hub, demo_model: Path) -> Iterator[Path]:
    """A repository with the demo model."""
    folder = hub.folder / REPO
    folder.mkdir(parents=True)
    shutil.copy(demo_model, folder / FILE)
    yield folder
    shutil.rmtree(folder)


@pytest.fixture
def target_path(home: Path) -> Path:
    """The path of the downloaded file."""
    return home / "data" / "models" / REPO / FILE


@pytest.fixture
def own_hub_model(home: Path) -> str:
    """A model of the user's own catalogue that is on the hub: the demo's shape, one preset."""
    folder = home / "config" / "models"
    folder.mkdir(parents=True)
    assert DEMO.geometry
    shape = "\n".join(f"{name} = {json.dumps(value)}" for name, value in asdict(DEMO.geometry).items() if value)
    file = f"{{ quant = 'F16', file = '{FILE}', size_bytes = {DEMO.files[0].size_bytes} }}"
    about = f"id = 'mine'\nname = 'Mine'\nrepo = '{REPO}'\nspeculation = 'mtp'\nfiles = [{file}]"
    preset = "[[models.presets]]\nquant = 'F16'\nctx = 4096\nkv = 'f16'\ndraft = 2"
    zeros = "\n".join(f"{name} = 0" for name in ("ffn",))
    (folder / "mine.toml").write_text(f"[[models]]\n{about}\n[models.geometry]\n{shape}\n{zeros}\n{preset}\n")
    return "mine"


def test_a_rate_limit_of_the_hub_is_waited_for_and_reported(
    hub: Hub, monkeypatch: pytest.MonkeyPatch, target_path: Path
) -> None:
    monkeypatch.setenv("HF_ENDPOINT", hub.with_faults("429*1"))
    result = run("pull", f"{REPO}:F16")
    assert result.returncode == 0, result.stderr
    assert result.stdout == f"{target_path}\n"
    collected = [line for line in result.stderr.splitlines() if "received too many requests. Next try in" in line]
    assert collected[0].startswith("Waiting: 127.0.0.1 received")  # the first wait is for the listing
    assert len(collected) > 1  # the others are for the file


class TestOutput:
    def test_only_the_path_is_printed_to_standard_output(self, target_path: Path) -> None:
        result = run("pull", f"{REPO}:{FILE}")
        assert result.returncode == 0, result.stderr
        assert result.stdout == f"{target_path}\n"
        first, *_, last = result.stderr.splitlines()
        assert first == f"{REPO}:{FILE}"
        assert "Received 8.6 MB in " in result.stderr
        assert last == f"MTP demo, with an MTP head. Start it: mtp-launcher serve {REPO}:{FILE}"
        assert "\r" not in result.stderr
        again = run("pull", f"{REPO}:{FILE}")
        assert (again.returncode, again.stdout) == (0, result.stdout)
        assert "Already downloaded, and verified." in again.stderr

    def test_the_file_that_suits_this_machine_is_chosen(self, own_hub_model: str, target_path: Path) -> None:
        result = run("pull", own_hub_model)
        assert result.returncode == 0, result.stderr
        assert result.stdout == f"{target_path}\n"
        first, second, *_ = result.stderr.splitlines()
        assert first == f"mine:F16, 8.6 MB, from {REPO}"
        assert second.startswith("  chosen for this machine: FITS, ")
        assert result.stderr.splitlines()[-1].endswith("Start it: mtp-launcher serve mine:F16")

    def test_pull_as_json(self, target_path: Path, demo_model: Path) -> None:
        start, *events, done = lines("pull", f"{REPO}:{FILE}")
        assert (start["event"], start["files"]) == ("start", [f"{REPO}:{FILE}"])
        assert {event["event"] for event in events} == {"progress"}
        size = demo_model.stat().st_size
        assert all(0 <= event["done_bytes"] <= event["bytes"] == size for event in events)
        assert done["event"] == "done"
        assert (done["path"], done["bytes"]) == (str(target_path), size)
        assert done["sha256"] == hashlib.sha256(demo_model.read_bytes()).hexdigest()
        assert done["resumed_bytes"] == 0
        assert done["seconds"] > 0
        assert done["mtp_head"] == "present"

    def test_a_file_without_its_promised_head_is_reported(
        self, own_hub_model: str, headless_model: Path, repository: Path, home: Path
    ) -> None:
        shutil.copy(headless_model, repository / FILE)
        toml = home / "config" / "models" / "mine.toml"
        size = headless_model.stat().st_size
        toml.write_text(toml.read_text().replace(str(DEMO.files[0].size_bytes), str(size)))
        *_, done, error = lines("pull", f"{own_hub_model}:F16", code=1)
        assert (done["event"], done["mtp_head"]) == ("done", "none")
        assert error["error"]["code"] == "model_has_no_mtp_head"
        (local,) = lines("models", "list")[0]["models"]
        assert "should have an MTP head" in local["problem"]
        for wanted in (own_hub_model, f"{own_hub_model}:F16"):
            refused = run("serve", wanted, "--draft", "2")
            assert (refused.returncode, refused.stdout) == (1, "")
            assert refused.stderr.startswith(f"Error: {FILE} has no MTP head (no MTP tensors).")
            assert "Start it with --draft 0" in refused.stderr

    @pytest.mark.parametrize("here", [["Q8_0"], ["F16", "Q8_0"]])
    def test_the_plan_names_the_downloaded_file(
        self, here: list[str], own_hub_model: str, repository: Path, home: Path
    ) -> None:
        shutil.copy(repository / FILE, repository / "small.gguf")
        toml = home / "config" / "models" / "mine.toml"
        file = f"{{ quant = 'Q8_0', file = 'small.gguf', size_bytes = {DEMO.files[0].size_bytes} }}, "
        text = toml.read_text().replace("files = [", f"files = [{file}")
        toml.write_text(f"{text}[[models.presets]]\nquant = 'Q8_0'\nctx = 4096\nkv = 'f16'\ndraft = 2\n")
        expected = "`mtp-launcher serve mine` starts Q8_0, which is here; `serve mine:F16` starts this."
        *_, last = [run("pull", f"{own_hub_model}:{quant}").stdout.strip() for quant in here]
        assert select_model(own_hub_model, load_catalogue()).local_path == Path(last)
        plans = lines("plan", own_hub_model)[0]["plans"]
        assert [plan["quant"] for plan in plans] == ["F16", "Q8_0"]
        assert [plan["quant"] for plan in plans if plan["path"]] == here
        assert plans[1]["path"] == last
        assert expected in " ".join(run("plan", own_hub_model).stdout.split())
        assert "which is here" not in run("plan", f"{own_hub_model}:F16").stdout

    @pytest.mark.parametrize(
        ("what", "code"),
        [
            ("nobody/knows:x.gguf", "refused"),
            (f"{REPO}:none.gguf", "model_missing"),
            ("no-such-id", "model_unknown"),
            ("https://models.example/x.gguf", "bad_option"),
            ("x.gguf", "bad_option"),
        ],
    )
    def test_an_error_is_the_last_line(self, what: str, code: str) -> None:
        error = lines("pull", what, code=1)[-1]["error"]
        assert error["code"] == code
        assert error["hint"].endswith(".")

    @pytest.mark.parametrize("arguments", [[], ["a/b:x.gguf", "--limit", "0"], ["a/b:x.gguf", "--limit", "nan"]])
    def test_wrong_command_lines_are_refused(self, arguments: list[str]) -> None:
        assert run("pull", *arguments).returncode == 2


class TestInterruption:
    @pytest.fixture(autouse=True)
    def half_of_it(self, hub: Hub, monkeypatch: pytest.MonkeyPatch) -> None:
        monkeypatch.setenv("HF_ENDPOINT", hub.with_faults("stalls"))

    def test_ctrl_c_pauses_and_says_how_to_resume(
        self, hub: Hub, target_path: Path, demo_model: Path, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        pipe = subprocess.PIPE
        with forked.start("pull", f"{REPO}:{FILE}", "--json", stdout=pipe, stderr=pipe) as program:
            assert program.stdout
            assert program.stderr
            while not json.loads(program.stdout.readline()).get("done_bytes"):
                pass
            program.send_signal(signal.SIGINT)
            rest = program.stdout.read().splitlines()
            assert program.stderr.read() == ""
        assert program.returncode == 130
        paused = json.loads(rest[-1])
        assert paused["event"] == "paused"
        assert not target_path.exists()
        assert target_path.with_name(FILE + ".part").exists()
        monkeypatch.setenv("HF_ENDPOINT", hub.url)
        result = run("pull", f"{REPO}:{FILE}")
        assert result.returncode == 0, result.stderr
        assert target_path.read_bytes() == demo_model.read_bytes()

    @pytest.mark.skipif(sys.platform == "win32", reason="Windows has no pseudo-terminals of this kind")
    def test_a_progress_bar_is_as_wide_as_the_terminal(self, demo_model: Path) -> None:
        import fcntl
        import pty
        import struct
        import termios

        parent, child = pty.openpty()
        fcntl.ioctl(child, termios.TIOCSWINSZ, struct.pack("HHHH", 24, 72, 0, 0))
        with subprocess.Popen(
            command("pull", f"{REPO}:{FILE}"), stdout=subprocess.PIPE, stderr=child, start_new_session=True, text=True
        ) as program:
            os.close(child)
            seen = _read_until(parent, b"4.3 MB of 8.6 MB")
            program.send_signal(signal.SIGINT)
            seen += _read_until(parent, None)
            assert program.stdout
            assert program.stdout.read() == ""
        os.close(parent)
        assert program.returncode == 130
        assert demo_model.stat().st_size // 10**5 == 86
        result = seen.decode()
        bars = [line for line in result.replace("\n", "\r").split("\r") if line.startswith("Downloading [")]
        assert bars
        assert max(map(len, bars)) < 72
        assert "Paused: 4." in result
        assert "The same command resumes." in result
        assert "Traceback" not in result


def _read_until(terminal: int, wanted: bytes | None) -> bytes:
    """Read what is printed until it holds `wanted`, or to its end."""
    seen = b""
    while wanted is None or wanted not in seen:
        try:
            part = os.read(terminal, 65_536)
        except OSError as error:
            if error.errno == errno.EIO:  # the command's side of the terminal is closed
                return seen
            raise
        if not part:
            return seen
        seen += part
    return seen


_ON_TERMINAL = (
    "import fcntl, os, sys, termios; fcntl.ioctl(0, termios.TIOCSCTTY, 0); os.execvp(sys.argv[1], sys.argv[1:])"
)
"""The terminal sends Ctrl-C, so it must be the controlling terminal of the program."""


class TestAfterwards:
    @pytest.mark.thorough
    def test_a_downloaded_model_is_planned_estimated_and_served(self, own_hub_model: str, target_path: Path) -> None:
        missing = run("serve", own_hub_model)
        assert missing.returncode == 1
        assert "Download it first: `mtp-launcher pull mine`." in missing.stderr
        assert "`mtp-launcher pull mine:F16` downloads it" in run("plan", "--model", own_hub_model).stdout
        run("pull", own_hub_model)
        planned = " ".join(run("plan", "--model", own_hub_model).stdout.split())
        assert f"on this machine: {target_path}" in planned
        assert f"--model {target_path}" in planned
        assert lines("plan", "--model", own_hub_model)[0]["plans"][0]["path"] == str(target_path)
        assert lines("estimate", "mine:F16")[0]["mtp_head"] == "present"
        with forked.start("serve", "mine:f16", "--json", stdout=subprocess.PIPE) as server:
            assert server.stdout
            assert json.loads(server.stdout.readline())["state"] == "ready"
            refused = lines("models", "remove", own_hub_model, "--yes", code=1)[-1]["error"]
            assert refused["code"] == "model_in_use"
            assert "mtp-launcher stop" in refused["hint"]
            assert target_path.exists()
            server.send_signal(signal.SIGINT)
            assert server.wait(30) == 0
        (removed,) = lines("models", "remove", own_hub_model, "--yes")
        assert removed["freed_bytes"] == DEMO.files[0].size_bytes
        assert not target_path.exists()

    def test_downloaded_models_are_listed(self, target_path: Path) -> None:
        assert "No models are on this machine." in run("models", "list").stdout
        assert lines("models", "list") == [{"models": [], "leftovers": []}]
        run("pull", f"{REPO}:{FILE}")
        result = run("models", "list")
        assert (result.returncode, result.stderr) == (0, "")
        assert "8.6 MB" in result.stdout
        assert str(target_path) in result.stdout
        (local,) = lines("models", "list")[0]["models"]
        assert (local["name"], local["state"], local["place"]) == (f"{REPO}:{FILE}", "good", "ours")
        assert (local["mtp_head"], local["quant"]) == ("present", "F16")

    def test_files_are_verified(self, target_path: Path) -> None:
        assert run("models", "verify").returncode == 0
        run("pull", f"{REPO}:{FILE}")
        result = run("models", "verify", f"{REPO}:{FILE}")
        assert (result.returncode, result.stdout) == (0, f"good     {target_path}\n")
        with target_path.open("r+b") as file:
            file.seek(-1, os.SEEK_END)
            file.write(b"\x55")
        bad = run("models", "verify")
        assert bad.returncode == 1
        assert bad.stdout.startswith(f"changed  {target_path}\n")
        *_, done = lines("models", "verify", "all", code=1)
        assert [each["outcome"] for each in done["verified"]] == ["changed"]
        target_path.unlink()
        *read, done = lines("models", "verify", code=1)
        assert done["verified"][0]["outcome"] == "missing"
        assert read == []
        assert "\n0 bytes in all." in run("models", "list").stdout

    def test_options_may_stand_anywhere(self, target_path: Path) -> None:
        run("pull", f"{REPO}:{FILE}")
        what = f"{REPO}:{FILE}"
        (result,) = [json.loads(line) for line in run("models", "list", "--json", what).stdout.splitlines()]
        assert result["models"][0]["name"] == what
        assert run("models", "--json", "verify", what).returncode == 0
        helped = run("models", "remove", "--help")
        assert helped.returncode == 0
        assert "usage: mtp-launcher models remove" in helped.stdout
        assert "--yes" in helped.stdout
        assert run("models", "remove", "--yse", what).returncode == 2
        assert target_path.exists()
        assert run("models", "remove", "--yes", what).returncode == 0
        assert not target_path.exists()

    @pytest.mark.skipif(sys.platform == "win32", reason="Windows has no pseudo-terminals of this kind")
    def test_removing_asks_for_confirmation(self, target_path: Path) -> None:
        run("pull", f"{REPO}:{FILE}")
        refused = run("models", "remove", f"{REPO}:{FILE}")
        assert refused.returncode == 1
        assert "--yes" in refused.stderr
        assert target_path.exists()
        for answer, code in ((b"\n", 1), (b"n\n", 1), (b"\x04", 1), (b"\x03", 130), (b"y\n", 0)):
            assert self.answered(f"{REPO}:{FILE}", answer) == code
            assert target_path.exists() is bool(code)

    @staticmethod
    def answered(what: str, answer: bytes) -> int:
        import pty

        parent, child = pty.openpty()
        with subprocess.Popen(
            [sys.executable, "-c", _ON_TERMINAL, *command("models", "remove", what)],
            stdin=child,
            stderr=child,
            stdout=subprocess.DEVNULL,
            start_new_session=True,
        ) as program:
            os.close(child)
            _read_until(parent, b"[y/N]")
            os.write(parent, answer)
            _read_until(parent, None)
        os.close(parent)
        return program.returncode

    def test_the_cache_of_other_programs_is_not_changed(self, tmp_path: Path, demo_model: Path) -> None:
        path = tmp_path / "hf" / "hub" / "models--cli--Demo-GGUF" / "snapshots" / ("a" * 40) / FILE
        path.parent.mkdir(parents=True)
        shutil.copy(demo_model, path)
        (local,) = lines("models", "list")[0]["models"]
        assert local["place"] == "cache"
        refused = lines("models", "remove", f"{REPO}:{FILE}", "--yes", code=1)[-1]["error"]
        assert "belongs to Hugging Face and is not deleted here" in refused["message"]
        assert path.exists()

    @pytest.mark.parametrize(
        "arguments", [["remove"], ["remove", "other", "--yes"], ["verify", "other"], ["demo", "x"]]
    )
    def test_a_missing_file_is_reported(self, arguments: list[str]) -> None:
        assert run("models", *arguments).returncode == 1
