"""The text that every verb prints, held against transcripts in tests/cli/golden.

A transcript is a list of commands, each with what it printed; commands share a home, and run in their order:

    # needs: demo_served                at the top, where more is needed than an empty home: fixtures
    $ mtp-launcher plan --gpu-memory 24
    a line of standard output
    ! a line of standard error
    [1]                                 the exit code, where it is not 0

What differs from run to run and from machine to machine is replaced by names such as <port>. A text is changed on
purpose by `just golden`, which runs the commands and writes what they print into the files.
"""

import difflib
import json
import os
import re
import shlex
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Iterator, Sequence
from pathlib import Path

import pytest

from launcher import __version__
from launcher.base.paths import HOME_VARIABLE
from launcher.cli.main import VERBS
from launcher.machine.machine import read_machine
from tests import forked
from tests.cli import in_process
from tests.conftest import ReleaseServer
from tools.sparse_models.models import model
from tools.sparse_models.write import write

GOLDEN = Path(__file__).parent / "golden"
PROMPT, NEEDS = "$ mtp-launcher ", "# needs: "
RECORDED_WITH = (3, 11)
"""argparse wraps and words its help differently from one Python to the next."""


@pytest.fixture(scope="module", autouse=True)
def commands_of_a_bare_machine(
    no_driver: Path,
    running_releases: ReleaseServer,  # no test may leave a process, so this one starts before the tests
) -> Iterator[None]:
    """Have commands run on a computer whose time zone is UTC, and whose GPU driver cannot be loaded."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("LD_LIBRARY_PATH", str(no_driver))
        patch.setenv("TZ", "UTC")
        yield


@pytest.fixture
def files(commands_of_a_bare_machine: None, monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    """An empty user account, under a path that has the same length at each run, as lines are wrapped."""
    root = Path(tempfile.mkdtemp(prefix="golden-", dir="/tmp"))
    folder = root / "files"
    folder.mkdir()
    for name in list(os.environ):
        others = ("XDG_", "HF_", "MTP_", "DISPLAY", "WAYLAND_DISPLAY", "COLUMNS", "LLAMA_")
        if name.startswith(others) or name.upper().endswith("_PROXY"):
            monkeypatch.delenv(name)
    for name in ("HF_ENDPOINT", "MTP_LAUNCHER_GITHUB_API", "MTP_LAUNCHER_RELEASES"):
        monkeypatch.setenv(name, "http://127.0.0.1:1")
    monkeypatch.setenv("MTP_LAUNCHER_RELEASE_KEY", "a key that signs nothing")
    monkeypatch.setenv("MTP_LAUNCHER_IGNORE_LOAD", "1")  # other tests run at the same time
    monkeypatch.setenv("HOME", str(root))
    monkeypatch.setenv("NO_COLOR", "1")
    monkeypatch.setenv("PATH", f"{Path(sys.executable).parent}:/usr/bin:/bin")
    monkeypatch.setenv(HOME_VARIABLE, str(root / "home"))
    monkeypatch.chdir(folder)
    yield folder
    shutil.rmtree(root)


@pytest.fixture
def home(files: Path) -> Path:
    """The folder that holds everything the program writes."""
    return files.parent / "home"


@pytest.fixture
def no_gpu() -> None:
    """Hide all GPUs of this computer."""
    if read_machine(wake=False).gpus:
        pytest.skip("this computer has a GPU")


@pytest.fixture
def own_files(files: Path) -> None:
    """A large model outside the catalogue, a file that is no model, and the log of a failed engine."""
    write(files / "moe.gguf", "made-up", model("qwen35moe-35b-iq3_s"))
    (files / "failed.log").write_text("ggml_cuda_init: found 1 CUDA devices\nCUDA error: out of memory\n")
    (files / "nothing.gguf").write_text("this is no model\n")


@pytest.fixture
def demo_file(files: Path, demo_model: Path) -> None:
    """The demo model as a file of the user's own."""
    shutil.copy(demo_model, files / "small.gguf")


@pytest.fixture
def demo_served(files: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """The demo, served by a process of its own at $URL with $KEY."""
    with forked.start("serve", "demo", "--json", stdout=subprocess.PIPE, stderr=subprocess.DEVNULL) as process:
        assert process.stdout is not None
        ready = json.loads(process.stdout.readline())
        monkeypatch.setenv("URL", ready["url"])
        monkeypatch.setenv("KEY", ready["api_key"])
        yield
        process.terminate()
        process.wait(120)


@pytest.fixture
def published_engines(files: Path, releases: ReleaseServer, monkeypatch: pytest.MonkeyPatch) -> None:
    """Two builds of llama.cpp, the older one stable."""
    builds = "cpu", "vulkan", "cuda-13.4"
    releases.publish("b11400", *builds, command=releases.command)
    releases.publish("v0.7.0", points_at="b11400")
    releases.publish("b11434", *builds, command=releases.command)
    monkeypatch.setenv("MTP_LAUNCHER_GITHUB_API", releases.api)


def _place_patterns(files: Path) -> Sequence[tuple[str, str]]:
    """Return patterns and what replaces them, in the order in which they are applied."""
    below = r"(?:\n {11}.*)*"
    return (
        (re.escape(str(files.parent / "home")), "<home>"),
        (re.escape(str(files)), "<files>"),
        (re.escape(str(files.parent)), "<user>"),
        (re.escape(sys.executable), "<python>"),
        (re.escape(str(Path(sys.prefix))), "<prefix>"),
        (re.escape(str(forked.ROOT)), "<program>"),
        (rf"^(mtp-launcher|MTP Launcher:) {re.escape(__version__)}$", r"\1 <version>"),
        (r"^(Python|System): .*", r"\1: <version>"),
        (rf"^(System|Processor|Memory|For models)( +).*{below}", r"\1\2<facts>"),
        (r"[\d.,]+ GB free, \w+$", "<free> GB free, <kind>"),
        (r"(127\.0\.0\.1:|--port '?|engine-|:-)(?!8080)\d{4,5}\b", r"\1<port>"),
        (r"^\d{5}( +)", r"<port>\1"),
        (r"\bpid \d+", "pid <pid>"),
        (r"API key  \S+$", "API key  <key>"),
        (r"\d{4}-\d\d-\d\d \d\d:\d\d( +)[\d,.]+ k?B", r"<when>\1<size>"),
        (r" *\b[\d,]+ bytes\b", " <size> bytes"),
        (r"cache/demo/[0-9a-f]{16}", "cache/demo/<sha256>"),
        (r"\d+ of \d+ drafted tokens", "<drafts> drafted tokens"),
        (r"of [\d,]+ MiB \(host memory\)", "of <free> MiB (host memory)"),
        (r"about [\d.]+ s, as", "about <time> s, as"),
        (
            r"[\d.,]+ t/s · (\d+ tokens) · first token [\d.]+ s · .* drafts accepted \(.*?\)",
            r"<rate> t/s · \1 · <drafts>",
        ),
    )


def _transcript(path: Path) -> list[str]:
    return path.read_text("utf-8").splitlines()


def _commands(lines: Sequence[str]) -> list[str]:
    return [line.removeprefix(PROMPT) for line in lines if line.startswith(PROMPT)]


def _rerun(lines: Sequence[str], files: Path) -> list[str]:
    """Return the transcript with what its commands print now."""
    needs = [line for line in lines[:1] if line.startswith(NEEDS)]
    return "\n".join(
        [*needs, "\n\n".join(_run_for_transcript(command, files) for command in _commands(lines))]
    ).splitlines()


def _run_for_transcript(command: str, files: Path) -> str:
    words = [os.path.expandvars(word) for word in shlex.split(command)]
    # Help texts are many, and the same when they are printed by this process.
    done = in_process.run(*words) if words[-1] == "--help" else forked.run(*words, cwd=files)
    printed = done.stdout.splitlines() + [f"! {text}".rstrip() for text in done.stderr.splitlines()]
    if done.returncode:
        printed.append(f"[{done.returncode}]")
    text = "\n".join(printed)
    for pattern, place in _place_patterns(files):
        text = re.sub(pattern, place, text, flags=re.MULTILINE)
    # Where the lines of a command break depends on how long the paths are that were just replaced.
    text = re.sub(r"<python>(?:.*\n {12})+", lambda found: re.sub(r"\n {12}", " ", found[0]), text)
    return f"{PROMPT}{command}\n{text}"


@pytest.mark.skipif(sys.version_info[:2] != RECORDED_WITH, reason="argparse of another Python words its help otherwise")
@pytest.mark.parametrize("name", sorted(path.stem for path in GOLDEN.glob("*.txt")))
def test_each_command_prints_what_its_transcript_says(name: str, files: Path, request: pytest.FixtureRequest) -> None:
    path = GOLDEN / f"{name}.txt"
    lines = _transcript(path)
    for fixture in lines[0].removeprefix(NEEDS).split() if lines[0].startswith(NEEDS) else ():
        request.getfixturevalue(fixture)
    now = _rerun(lines, files)
    if request.config.getoption("--write-golden"):
        path.write_text("\n".join(now) + "\n", "utf-8")
        return
    differences = difflib.unified_diff(lines, now, f"golden/{path.name}", "printed now", lineterm="", n=2)
    if result := "\n".join(differences):
        pytest.fail(f"{result}\n\nIs that what is meant? `just golden` writes it into the file.", pytrace=False)


def test_every_verb_has_a_transcript(files: Path, request: pytest.FixtureRequest) -> None:
    commands = {command for path in GOLDEN.glob("*.txt") for command in _commands(_transcript(path))}
    missing = [verb for verb in VERBS if f"{verb} --help" not in commands]
    if request.config.getoption("--write-golden"):
        for verb in missing:
            (GOLDEN / f"{verb}.txt").write_text(_run_for_transcript(f"{verb} --help", files) + "\n", "utf-8")
        return
    assert not missing, "`just golden` writes a transcript for each"
