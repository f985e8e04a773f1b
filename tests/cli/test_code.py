"""`code` and `agent-check`: an agent with a server that suits it. The agent here is a small program of the tests."""

import json
import os
import re
import signal
import subprocess
import sys
from itertools import pairwise
from pathlib import Path

import pytest

from tests import forked
from tests.agents.scripted import PROGRAM, scripted_server
from tests.agents.test_late_system import GUARDED
from tests.cli.in_process import run
from tests.models.tiny_models import write_templated, write_trained

CLAUDE = PROGRAM.with_name("claude_client.py")
AGENT = """#!{python}
import json, os, sys, urllib.request
if "--version" in sys.argv:
    sys.exit(print("opencode 0.0.1"))
config = json.load(open(os.environ["OPENCODE_CONFIG"]))
options = config["provider"]["mtp"]["options"]
body = {{"model": config["model"].removeprefix("mtp/"), "max_tokens": 8,
        "messages": [{{"role": "user", "content": "Hello. " * int(os.environ.get("HELLOS", 1))}}],
        "tools": [{{"type": "function", "function": {{
            "name": "read", "parameters": {{"type": "object", "required": ["path"], "properties": {{}}}}}}}}]}}
request = urllib.request.Request(options["baseURL"] + "/chat/completions", json.dumps(body).encode(),
    {{"Content-Type": "application/json", "Authorization": "Bearer " + os.environ["LLAMA_API_KEY"]}})
try:
    reply = json.load(urllib.request.urlopen(request, timeout=120))
except urllib.error.HTTPError:
    sys.exit(0)  # some agents end silently at a prompt that is too long
print("reply", json.dumps(reply["choices"][0]["message"])[:60], "arguments", sys.argv[1:], flush=True)
print("folder", os.path.dirname(os.environ["OPENCODE_CONFIG"]), flush=True)
if "wait" in sys.argv:
    import signal
    signal.signal(signal.SIGINT, lambda *_: sys.exit(7))
    print("waiting", flush=True)
    signal.pause()
sys.exit(5)
"""


@pytest.fixture
def opencode(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A program called opencode, first in PATH."""
    program = tmp_path / "bin" / "opencode"
    program.parent.mkdir()
    program.write_text(AGENT.format(python=sys.executable))
    program.chmod(0o755)
    monkeypatch.setenv("PATH", f"{program.parent}:{os.environ['PATH']}")
    return program


def test_the_agent_gets_its_own_server_and_its_exit_code_is_returned(home: Path, opencode: Path) -> None:
    ended = forked.run("code", "opencode", "--model", "demo", "--no-check", "--", "run", "--fast", "a b")
    assert ended.returncode == 5, ended.stderr
    assert "reply" in ended.stdout
    assert "arguments ['run', '--fast', 'a b']" in ended.stdout
    folder = Path(ended.stdout.split("folder ")[1].splitlines()[0])
    assert not folder.exists()
    assert "context 32,768" in ended.stderr
    assert "0.0.1 of opencode was not tried" in " ".join(ended.stderr.split())
    assert re.search(r"^1 request: \d+ prompt tokens read, \d reused, \d+ % of drafts accepted\.$", ended.stderr, re.M)
    assert "Checking" not in ended.stderr
    assert json.loads(forked.run("status", "--json").stdout) == []


@pytest.mark.parametrize(
    ("fault", "verdict"),
    [
        ("", "Ready for opencode: tool calls parsed, 100 % of the prompt reused, 70 % of drafts accepted."),
        ("text-call", "Not ready for opencode. The tool call came as text, so that an agent cannot run it"),
    ],
)
def test_its_server_is_checked_after_the_agent_has_ended(
    home: Path, opencode: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, fault: str, verdict: str
) -> None:
    monkeypatch.setenv("AGENT_FAULTS", fault)
    engine = tmp_path / "engine"
    engine.write_text(f'#!/bin/sh\nexec "{sys.executable}" "{PROGRAM}" "$@"\n')
    engine.chmod(0o755)
    ended = forked.run("code", "opencode", "--model", "demo", "--engine", str(engine))
    assert ended.returncode == 5, ended.stderr
    assert verdict in " ".join(ended.stderr.split())


@pytest.mark.thorough
def test_ctrl_c_skips_the_check(home: Path, opencode: Path) -> None:
    command = [sys.executable, "-m", "launcher", "code", "opencode", "--model", "demo"]
    with subprocess.Popen(command, stderr=subprocess.PIPE, text=True, start_new_session=True) as process:
        assert process.stderr is not None
        while "Ctrl-C skips that" not in (line := process.stderr.readline()):
            assert line
        os.killpg(process.pid, signal.SIGINT)
        assert "eady for" not in process.stderr.read()  # the demo never passes, and the check would have reported it
        assert process.wait(60) == 5


@pytest.fixture
def claude(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A program called claude, first in PATH, with a home of its own: what Claude Code sends, in its exact shape."""
    program = tmp_path / "bin" / "claude"
    program.parent.mkdir()
    program.write_text(f'#!/bin/sh\nexec "{sys.executable}" "{CLAUDE}" "$@"\n')
    program.chmod(0o755)
    monkeypatch.setenv("PATH", f"{program.parent}:{os.environ['PATH']}")
    monkeypatch.setenv("CLAUDE_CONFIG_DIR", str(tmp_path / "claude"))
    monkeypatch.setenv("CLAUDE_RULES", "20")
    return program


def test_claude_code_reads_a_file_and_goes_on(
    home: Path, claude: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    log, file = tmp_path / "log", tmp_path / "answer.py"
    file.write_text("def answer():\n    return 42\n")
    monkeypatch.setenv("AGENT_FILE", str(file))
    monkeypatch.setenv("AGENT_LOG", str(log))
    with scripted_server() as url:
        first = forked.run("code", "claude", "--url", url, "--", "-p", "What does answer.py return?")
        second = forked.run("code", "claude", "--url", url, "--", "-c", "-p", "And once more?")
        other = forked.run("code", "claude", "--url", url, "--", "-p", "What is in this folder?")
    assert (first.returncode, second.returncode, other.returncode) == (0, 0, 0), first.stderr + second.stderr
    assert "The file returns 42." in first.stdout
    assert "The file returns 42." in second.stdout
    sent = [json.loads(line) for line in log.read_text().splitlines()]
    assert sum(each["path"] == "/v1/messages/count_tokens" for each in sent) == 3
    requests = [each for each in sent if each["path"] == "/v1/messages"]
    # No request for a title among them, which has no tools.
    assert [len(each["tools"]) for each in requests] == [12] * 6
    for before, after in pairwise(requests[:4]):
        assert after["reused"] >= 0.99 * before["tokens"]
    # Another conversation begins as the first did: the header that changes with each of them is turned off.
    assert requests[4]["reused"] >= 0.97 * requests[4]["tokens"]


def test_claude_code_compacts_a_long_conversation_and_reuses_its_prompt(
    home: Path, claude: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    log, file = tmp_path / "log", tmp_path / "answer.py"
    file.write_text("# one of many lines\n" * 500 + "def answer():\n    return 42\n")
    monkeypatch.setenv("AGENT_FILE", str(file))
    monkeypatch.setenv("AGENT_LOG", str(log))
    with scripted_server(context=32_768) as url:
        for words in (["-p"], ["-c", "-p"], ["-c", "-p"]):
            ended = forked.run("code", "claude", "--url", url, "--", *words, "What does answer.py return?")
            assert "The file returns 42." in ended.stdout, ended.stderr
    requests = [json.loads(line) for line in log.read_text().splitlines() if '"/v1/messages"' in line]
    (summary,) = [at for at, each in enumerate(requests) if not each["results"] and isinstance(each["answered"], str)]
    assert requests[summary]["tools"] == requests[0]["tools"]
    assert requests[summary]["reused"] >= 0.95 * requests[summary]["tokens"]
    assert requests[summary + 1]["tokens"] < requests[summary]["tokens"] / 2


def test_a_template_that_refuses_the_late_system_message_of_claude_code_is_corrected(
    home: Path, claude: Path, demo_model: Path, tmp_path: Path
) -> None:
    model = tmp_path / "guarded.gguf"
    write_templated(demo_model, model, GUARDED)
    command = ("code", "claude", "--model", str(model), "--ctx", "49152", "--slots", "1")
    refused = forked.run(*command, "--own-template", "--no-check", "--", "-p", "What is MTP?")
    assert refused.returncode == 1
    assert "System message must be at the beginning" in refused.stderr
    corrected = forked.run(*command, "--no-check", "--", "-p", "What is MTP?")
    assert corrected.returncode == 0, corrected.stderr
    assert corrected.stdout.strip()
    assert "a corrected one is used" in " ".join(corrected.stderr.split())


@pytest.mark.thorough
def test_an_agent_without_a_usable_template_is_not_started(
    home: Path, claude: Path, demo_model: Path, tmp_path: Path
) -> None:
    model = tmp_path / "other.gguf"
    write_templated(demo_model, model, GUARDED.replace("System message must be at the beginning.", "No."))
    command = ("code", "claude", "--model", str(model), "--ctx", "49152", "--slots", "1")
    refused = forked.run(*command, "--", "-p", "What is MTP?")
    assert refused.returncode == 1
    assert "other refuses the late system messages of Claude Code. It cannot be corrected." in " ".join(
        refused.stderr.split()
    )
    assert "API Error" not in refused.stderr
    tried = forked.run(*command, "--own-template", "--no-check", "--", "-p", "What is MTP?")
    assert "API Error" in tried.stderr


@pytest.mark.thorough
def test_ctrl_c_is_left_to_the_agent(home: Path, opencode: Path) -> None:
    command = [sys.executable, "-m", "launcher", "code", "opencode", "--model", "demo", "--", "wait"]
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True, start_new_session=True) as process:
        assert process.stdout is not None
        while "waiting" not in (line := process.stdout.readline()):
            assert line
        os.killpg(process.pid, signal.SIGINT)
        assert process.wait(60) == 7


def test_nothing_is_printed_while_the_agent_runs(home: Path, opencode: Path) -> None:
    command = [sys.executable, "-m", "launcher", "code", "opencode", "--model", "demo", "--no-check", "--", "wait"]
    pipe = subprocess.PIPE
    with subprocess.Popen(command, stdout=pipe, stderr=pipe, text=True, start_new_session=True) as process:
        assert process.stdout is not None
        assert process.stderr is not None
        while "waiting" not in (line := process.stdout.readline()):
            assert line
        (server,) = json.loads(forked.run("status", "--json").stdout)
        os.kill(killed := server["pid"], signal.SIGKILL)
        while server["pid"] == killed or server["state"] != "ready":
            (server,) = json.loads(forked.run("status", "--json").stdout)
        os.killpg(process.pid, signal.SIGINT)
        output = process.stderr.read()
        assert process.wait(60) == 7
    begin, end = output.index("opencode with demo"), output.index("1 request: ")
    assert "Loading" not in output[begin:end]
    assert re.search(r"^\d\d:\d\d The engine was killed by", output[begin:end], re.M)


@pytest.mark.parametrize("alone", [True, False])
def test_a_closed_terminal_ends_the_session_and_deletes_its_files(home: Path, opencode: Path, *, alone: bool) -> None:
    command = [sys.executable, "-m", "launcher", "code", "opencode", "--model", "demo", "--", "wait"]
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True, start_new_session=True) as process:
        assert process.stdout is not None
        while "folder " not in (line := process.stdout.readline()):
            assert line
        folder = Path(line.split()[1])
        while "waiting" not in process.stdout.readline():
            pass
        assert folder.is_dir()
        (os.kill if alone else os.killpg)(process.pid, signal.SIGHUP)
        assert process.stdout.read() == "", "the agent has ended, too"
        assert process.wait(60) == 129
    assert not folder.exists()


def test_a_running_server_is_used_and_checked(home: Path, opencode: Path) -> None:
    with scripted_server() as url:
        ended = run("code", "opencode", "--url", url)
        assert ended.returncode == 5, ended.stderr
        assert f"`mtp-launcher agent-check --agent opencode --url {url}` checks that." in " ".join(ended.stderr.split())
        for setting in (("--ctx", "65536"), ("--engine", "built-in")):
            refused = run("code", "opencode", "--url", url, *setting)
            assert f"Error: {url} runs already, with its own settings." in refused.stderr
        assert run("agent-check", "--url", url, "--agent", "opencode").returncode == 0
        verdict = run("agent-check", "--url", url, "--json")
    assert verdict.returncode == 0
    data = json.loads(verdict.stdout)
    assert data.keys() >= {"ready", "tool_call", "reuse_turn2", "reuse_turn3", "acceptance", "sentence"}
    assert data["faults"] == []
    assert [each["step"] for each in data["requests"]] == ["first_prompt", "tool_result", "next_question"]
    assert all(each["passed"] for each in data["requests"])
    assert data["ready"]
    assert data["acceptance"] == 0.7


def test_an_agent_that_sends_no_request_is_distinguished_from_a_failing_server(home: Path, opencode: Path) -> None:
    opencode.write_text("#!/bin/sh\nexit 3\n")
    ended = forked.run("code", "opencode", "--model", "demo")
    assert ended.returncode == 3
    assert "\nopencode sent no request.\n" in ended.stderr
    assert "Checking" not in ended.stderr


def test_a_prompt_that_is_too_long_is_reported_even_if_the_agent_does_not(
    home: Path, opencode: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("HELLOS", "30000")
    ended = forked.run("code", "opencode", "--model", "demo", "--no-check")
    output = " ".join(ended.stderr.split())
    assert (ended.returncode, ended.stdout) == (0, "")
    assert re.search(r"A prompt was refused as too long: it had \d+,\d{3} tokens, and the context has 32,768\.", output)
    assert "Begin a new conversation, or choose a larger context, --ctx N." in output
    with forked.start("serve", "demo", "--ctx", "32768", "--json", stdout=subprocess.PIPE) as server:
        assert server.stdout is not None
        server.stdout.readline()
        ended = forked.run("code", "opencode", "--no-check")
        with forked.start("code", "opencode", "--server-only", stdout=subprocess.PIPE, stderr=subprocess.PIPE) as shown:
            assert shown.stdout is not None
            lines = [shown.stdout.readline() for _ in range(2)]
            config = Path(next(line for line in lines if "OPENCODE_CONFIG" in line).strip().partition("=")[2])
            assert config.is_file(), "for an agent that the user starts with it"
            shown.send_signal(signal.SIGINT)
            assert shown.wait(60) == 0
        assert not config.exists()
        server.terminate()
    assert "give the server a larger context, `mtp-launcher restart --set ctx=N`." in " ".join(ended.stderr.split())


def test_print_starts_and_writes_nothing_and_hides_the_key(home: Path, opencode: Path) -> None:
    printed = run("code", "opencode", "--print", "--json", "--model", "demo", "--", "run", "hi")
    assert printed.returncode == 0
    data = json.loads(printed.stdout)
    assert data["environment"]["LLAMA_API_KEY"] == "***"
    assert data["command"] == [str(opencode), "run", "hi"]
    (path,) = data["files"]
    assert not Path(path).parent.exists()
    assert json.loads(data["files"][path])["model"] == "mtp/demo"
    text = run("code", "opencode", "--print", "--model", "demo").stdout
    assert "export LLAMA_API_KEY='***'" in text
    assert path in text


def test_impossible_requests_are_refused(home: Path, opencode: Path) -> None:
    assert "is not a coding agent" in run("code", "copilot").stderr
    assert "npm install -g cline" in run("code", "cline", "--model", "demo").stderr
    assert "--json belongs to --print" in run("code", "opencode", "--json").stdout
    assert "There is no model on this machine yet" in run("code", "opencode").stderr
    with scripted_server(context=8192) as url:
        refused = run("code", "opencode", "--url", url)
    assert refused.returncode == 1
    assert "at least 24,576 tokens" in refused.stderr
    with scripted_server("refuses-late") as url:
        refused = run("code", "codex", "--print", "--url", url)
        assert refused.returncode == 0
    small = run("code", "opencode", "--model", "demo", "--ctx", "4096")
    assert "at least 24,576 tokens" in small.stderr


def test_a_program_that_the_system_cannot_run_is_reported_with_the_install_command(home: Path, opencode: Path) -> None:
    opencode.write_text("#!/no/such/interpreter\n")
    refused = run("code", "opencode", "--model", "demo")
    assert refused.returncode == 1
    assert refused.stderr.splitlines()[-2:] == [
        f"Error: {opencode} is there but does not run: No such file or directory.",
        "       Install opencode again: npm install -g opencode-ai",
    ]
    assert run("status").returncode == 1, "its server has ended"


def test_a_wrong_command_line_is_explained_in_two_lines(home: Path, opencode: Path) -> None:
    done = run("code", "opencode", "run", "hi")
    assert done.returncode == 2
    output = done.stderr.splitlines()
    assert "unrecognized arguments: run hi; arguments for the agent go after --" in output[0]
    assert output[1:] == ["`mtp-launcher code --help` shows the usage."]
    both = run("code", "opencode", "--model", "demo", "--print", "--server-only")
    assert both.returncode == 1
    assert "cannot be combined" in both.stderr


def test_a_fix_names_a_command_of_the_same_verb(home: Path, opencode: Path) -> None:
    done = run("code", "opencode", "--model", "demo", "--ctx", "65536", "--engine", "/nope", "--", "run", "hi")
    fixes = [line.strip() for line in done.stderr.splitlines() if line.strip().startswith("mtp-launcher ")]
    built_in = next(line for line in fixes if " code " in line)
    assert built_in.startswith("mtp-launcher code opencode --model demo --ctx 65536")
    assert built_in.endswith(" -- run hi")
    assert not any(" serve " in line for line in fixes)


@pytest.mark.parametrize("option", [("--ctx", "4096"), ("--ctx", "8192", "--slots", "2")])
def test_an_option_that_leaves_too_little_context_is_named(home: Path, opencode: Path, option: tuple[str, ...]) -> None:
    done = run("code", "opencode", "--model", "demo", "--print", *option)
    assert done.returncode == 1
    output = " ".join(done.stderr.split())
    assert f"Leave out {' '.join(option)}: without that, a request has" in output
    assert "download" not in output


@pytest.mark.parametrize(
    ("option", "sentence"),
    [(("--kv", "blah"), "blah"), (("--engine", "/nope"), "/nope"), (("--engine", "/bin/true"), "/bin/true")],
)
def test_print_refuses_the_same_options_as_a_start(
    home: Path, opencode: Path, option: tuple[str, str], sentence: str
) -> None:
    printed = run("code", "opencode", "--model", "demo", "--print", *option)
    started = run("code", "opencode", "--model", "demo", *option)
    assert (printed.returncode, printed.stdout) == (started.returncode, "")
    assert sentence in printed.stderr
    assert set(printed.stderr.splitlines()) <= set(started.stderr.splitlines())


def test_the_chosen_context_is_at_most_the_trained_one(
    home: Path, opencode: Path, demo_model: Path, tmp_path: Path
) -> None:
    model = tmp_path / "short.gguf"
    write_trained(demo_model, model, 4_096)
    refused = run("code", "opencode", "--model", str(model))
    assert refused.returncode == 1
    assert "at least 24,576 tokens, and there would be 4,096" in " ".join(refused.stderr.split())
