"""`mtp-launcher code AGENT`: start a coding agent with a server that suits it."""

from __future__ import annotations

import argparse
import asyncio
import os
import shlex
import signal
import sys
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager, nullcontext
from dataclasses import replace
from datetime import datetime
from pathlib import Path
from typing import TYPE_CHECKING, Any

from launcher.agents.agent import find_agent
from launcher.agents.configuration import AgentServer
from launcher.agents.program import AgentMissing, find_program, read_version, search_path
from launcher.agents.session_folder import kept_session_files, session_folder
from launcher.app.agent_session import HIDDEN_KEY, configure_session, format_environment, plan_server
from launcher.app.coding import (
    check_agent_server,
    check_template,
    choose_model,
    correct_start,
    find_running_server,
    resolve_agent_start,
)
from launcher.app.serving.running_servers import prepare_for, read_requests
from launcher.app.serving.session import ServerSession
from launcher.base.codec import to_json
from launcher.base.errors import BadOption, LauncherError
from launcher.cli.agent_summary import summarize_requests
from launcher.cli.given_key import read_api_key
from launcher.cli.given_options import given_settings, make_serve_options
from launcher.cli.layout import wrap_text
from launcher.cli.options.code import configure
from launcher.cli.output import Result
from launcher.cli.shared_terminal import SharedTerminal
from launcher.cli.suggested_fixes import actions_json, print_failure
from launcher.engine.diagnosis.fix_command import FixCommand
from launcher.engine.server.endpoint import Endpoint
from launcher.engine.server.last_start import PROGRAM, save_last_model
from launcher.engine.server.launch import api_model_name, prepare_launch
from launcher.gateway.request_log import MOST_REMEMBERED
from launcher.monitor.monitor import UNSEEN

if TYPE_CHECKING:
    from launcher.agents.agent import Agent
    from launcher.agents.configuration import AgentConfiguration
    from launcher.app.coding import RunningServer
    from launcher.app.planning.start_settings import ResolvedStart
    from launcher.base.action import Action

_SIGNALLED = 128
"""Exit code for an agent that a signal has ended: this plus the number of the signal, as in a shell."""
_STOP_S = 5.0
_CHECK_LIMIT_S = 60.0
"""A processor alone can take minutes for the prompts of the check."""


async def run(options: argparse.Namespace) -> Result | int:
    """Start the agent, wait for its end, and return its exit code; with --print return its configuration."""
    agent = find_agent(options.agent)
    Path.cwd()  # raises FileNotFoundError before a model is loaded: no agent starts in a folder that is gone
    if options.model and options.url:
        raise BadOption("--model and --url cannot be combined.", "--url names a running server.")
    if options.only_print and options.server_only:
        raise BadOption(
            "--print and --server-only cannot be combined.", "Both show what the agent gets; --print starts no server."
        )
    if options.json and not options.only_print:
        raise BadOption("--json belongs to --print.", "The agent itself prints what it does.")
    try:
        program = find_program(agent)
    except AgentMissing:
        if not options.only_print and not options.server_only:
            raise
        program = (agent.program,)
    running = await find_running_server(agent, options.model, options.url, read_api_key(options.url, options))
    given = given_settings(options)
    if running is not None and (given or options.engine is not None):
        raise BadOption(
            f"{running.server.url} runs already, with its own settings.",
            "Change them with `mtp-launcher restart --set NAME=VALUE`, or stop it first.",
        )
    if options.only_print:
        server = running.server if running else await _plan_server(agent, options, given)
        return _describe_session(agent, server, program, options.extra)
    if running is not None:
        if not options.own_template:
            await check_template(agent, running.server)
        if running.entry is not None:
            await prepare_for(running.entry, agent.name)
        began = datetime.now().astimezone()
        code = await _run_with_server(agent, running.server, program, options)
        if options.server_only:
            return code
        if running.entry is not None:
            await _sum_up_since(began, running)
        if not options.no_check:
            which = f" --url {options.url}" if options.url else ""
            _say(f"Is it ready for {agent.title}? `mtp-launcher agent-check --agent {agent.name}{which}` checks that.")
        return code
    return await _run_with_own_server(agent, program, options, given)


async def _resolve_start(agent: Agent, options: argparse.Namespace, given: Mapping[str, Any]) -> ResolvedStart:
    """Return the start of the model for the agent, with a corrected chat template if it needs one."""
    model = options.model or await choose_model()
    agents_arguments, options.extra = options.extra, []  # what follows -- is the agent's, not the engine's
    try:
        start = await resolve_agent_start(agent, model, given, lambda path: make_serve_options(options, path))
    finally:
        options.extra = agents_arguments
    if agent.late_system and not options.own_template and (corrected := await correct_start(start)):
        if not options.only_print:
            _say(
                f"The chat template of {start.options.model.name} refuses the late system messages of {agent.title}."
                " For this server a corrected one is used; --own-template turns that off."
            )
        return corrected
    return start


async def _plan_server(agent: Agent, options: argparse.Namespace, given: Mapping[str, Any]) -> AgentServer:
    """Return the server that would be started. Raises what the start would raise."""
    start = await _resolve_start(agent, options, given)
    await prepare_launch(start.options, Endpoint(0, ""))  # raises what a start would
    return await plan_server(start)


def _describe_session(agent: Agent, server: AgentServer, program: Sequence[str], arguments: Sequence[str]) -> Result:
    """Return the configuration of a session, without the key."""
    server = replace(server, api_key=HIDDEN_KEY)
    configuration = configure_session(agent, server, program, Path.cwd() / f"{agent.name}-session", arguments)
    lines = [*format_environment(configuration)]
    if configuration.files:
        lines.append("\n# A start writes these files into a private folder instead, and deletes it at the end.")
    for path, text in configuration.files.items():
        lines += [f"\n# {path}", text.rstrip()]
    lines.append("\n" + shlex.join(configuration.command))
    data = {
        "agent": agent.name,
        "url": server.url,
        "model": server.model,
        "context": server.context,
        "environment": configuration.environment,
        "unset": configuration.unset,
        "files": {str(path): text for path, text in configuration.files.items()},
        "command": list(configuration.command),
    }
    return Result(data, lines)


async def _run_with_own_server(
    agent: Agent, program: tuple[str, ...], options: argparse.Namespace, given: Mapping[str, Any]
) -> int:
    """Start a server, run the agent, and stop the server."""
    start = await _resolve_start(agent, options, given)
    terminal = SharedTerminal()
    session = ServerSession(on_event=terminal.show_event)
    session.monitor.periods = UNSEEN

    def command_for_action(action: Action) -> FixCommand:
        return _make_code_command(session.command_for_action(action), options)

    try:
        try:
            await session.start(start.request)
        except LauncherError as error:
            print_failure(error, actions_json(error.actions, command_for_action), as_json=False)
            return 1
        await asyncio.to_thread(save_last_model, start.model_name)
        server = await _read_own_server(session)
        if not options.own_template:
            await check_template(agent, server)
        session.prepare_for(agent.name)
        with nullcontext() if options.server_only else terminal.lent():
            code = await _run_with_server(agent, server, program, options, session)
        if not options.server_only:
            records = to_json(session.request_log.records)
            if not records:
                _say(f"{agent.title} sent no request.")
            for line in summarize_requests(records, server.context, "choose a larger context, --ctx N"):
                _say(line)
            if records and not options.no_check:
                await _check_server(agent, server)
        return code
    finally:
        await session.stop()


def _make_code_command(fix: FixCommand, options: argparse.Namespace) -> FixCommand:
    """Return a fix with `code` in place of `serve`, which would leave the agent out.

    The server's settings that `code` does not have are left out: it finds them itself for the agent.
    """
    parser = argparse.ArgumentParser(add_help=False, allow_abbrev=False)
    configure(parser)
    steps = []
    for step in fix.steps:
        if step[:2] == (PROGRAM, "serve"):
            words = [*step[2 : step.index("--") if "--" in step else None]]
            if not words[0].startswith("-"):
                words.insert(0, "--model")
            _, unknown = parser.parse_known_args([options.agent, *words])
            known = [word for word in words if word not in unknown]
            step = (PROGRAM, "code", options.agent, *known, *(("--", *options.extra) if options.extra else ()))
        steps.append(step)
    return FixCommand(tuple(steps), fix.link)


async def _read_own_server(session: ServerSession) -> AgentServer:
    """Return the server that this process runs, as the agent sees it."""
    supervisor = session.supervisor
    launch, endpoint = supervisor.launch, supervisor.endpoint
    assert launch is not None  # noqa: S101 -- the server has started, so it has a launch
    context = launch.plan_settings("cpu").slot_context
    return AgentServer(endpoint.url, endpoint.api_key, api_model_name(launch.options), context)


async def _run_with_server(
    agent: Agent,
    server: AgentServer,
    program: tuple[str, ...],
    options: argparse.Namespace,
    session: ServerSession | None = None,
) -> int:
    """Run the agent with a server that is ready, or with --server-only wait; return the exit code."""
    folder = session_folder(agent.name)
    configuration = configure_session(agent, server, program, folder, options.extra)
    _say(f"{agent.title} with {server.model} at {server.url}, context {server.context:,}.")
    with kept_session_files(folder, configuration.files):
        if options.server_only:
            for line in (*format_environment(configuration), shlex.join(configuration.command)):
                print(line)
            sys.stdout.flush()
            return await _wait_for_interrupt(session, configuration)
        version = await read_version(program)
        if version is not None and version not in agent.versions:
            tried = " and ".join(agent.versions)
            were = "was" if len(agent.versions) == 1 else "were"
            _say(f"Version {version} of {agent.title} was not tried with this program; {tried} {were}, {agent.tried}.")
        return await _run_program(agent, configuration)


async def _wait_for_interrupt(session: ServerSession | None, configuration: AgentConfiguration) -> int:
    """Wait until Ctrl-C, or until the own server ends; return the exit code.

    With a server of another process (`session` is None) the wait only keeps the session's files.
    """
    try:
        if session is not None:
            _say("Ctrl-C stops the server.")
            if (failure := await session.wait_until_ended()) is not None:
                raise failure
        elif configuration.files:
            _say("Ctrl-C deletes the files; the server goes on.")
            await asyncio.Event().wait()
    except asyncio.CancelledError:
        pass
    return 0


async def _run_program(agent: Agent, configuration: AgentConfiguration) -> int:
    """Run the agent in this terminal and return its exit code. Ctrl-C is the agent's until it ends.

    Raises AgentMissing if the system does not run the agent's file, for example because its interpreter is missing.
    """
    environment = {name: value for name, value in os.environ.items() if name not in configuration.unset}
    environment["PATH"] = search_path(configuration.command)
    with _interrupts_handled(lambda: None):  # the agent is in the same terminal and gets it, too
        try:
            process = await asyncio.create_subprocess_exec(
                *configuration.command, env=environment | dict(configuration.environment)
            )
        except OSError as error:
            program = configuration.command[0]
            raise AgentMissing(
                f"{program} is there but does not run: {error.strerror or error}.",
                f"Install {agent.title} again: {agent.install}",
                agent=agent.name,
                install=agent.install,
            ) from None
        try:
            code = await process.wait()
        finally:
            if process.returncode is None:
                process.terminate()
                try:
                    async with asyncio.timeout(_STOP_S):
                        await process.wait()
                except TimeoutError:
                    process.kill()
                    await process.wait()
    return code if code >= 0 else _SIGNALLED - code


async def _check_server(agent: Agent, server: AgentServer) -> None:
    """Print the verdict on a server, as `agent-check` does. Ctrl-C skips the check."""
    _say(f"Checking whether the server is ready for {agent.title}. Ctrl-C skips that.")
    check = asyncio.create_task(check_agent_server(agent, server))
    try:
        with _interrupts_handled(check.cancel):
            await asyncio.wait((check,), timeout=_CHECK_LIMIT_S)
        if not check.done():
            _say(f"Not known: the check takes longer than {_CHECK_LIMIT_S:.0f} s here.")
        elif not check.cancelled():
            _say(check.result().sentence)
    except LauncherError as error:
        _say(str(error))
    finally:
        check.cancel()
        await asyncio.wait((check,))


@contextmanager
def _interrupts_handled(handle: Callable[[], object]) -> Iterator[None]:
    """Call a function at Ctrl-C within the block, instead of ending this command."""
    loop = asyncio.get_running_loop()
    if sys.platform == "win32":
        before = signal.signal(signal.SIGINT, lambda *_: loop.call_soon_threadsafe(handle))
        yield
        signal.signal(signal.SIGINT, before)
        return
    loop.add_signal_handler(signal.SIGINT, handle)
    yield


async def _sum_up_since(began: datetime, running: RunningServer) -> None:
    """Print a summary of the requests to a running server since `began`."""
    url = running.server.url
    try:
        records = [each async for each in read_requests(url, count=MOST_REMEMBERED, follow=False)]
    except LauncherError as error:
        _say(str(error))
        return
    sent = [each for each in records if datetime.fromisoformat(each["started"]) >= began]
    remedy = "give the server a larger context, `mtp-launcher restart --set ctx=N`"
    for line in summarize_requests(sent, running.server.context, remedy):
        _say(line)


def _say(text: str) -> None:
    print(wrap_text(text), file=sys.stderr, flush=True)
