"""Runs real coding agents with `mtp-launcher code`, on a scripted engine behind the gateway and on the demo.

The agents are installed from npm into a folder. Each gets a home and a project of its own. Connections to other
computers are refused and recorded. A transcript of each agent is kept in FOLDER/transcripts. --misfortunes tests errors
instead: prompts that are too long, conversations that outgrow the context, restarts and killed engines in the middle of
a reply. --cold runs three sessions, each with a server that was just started. --late-system tests a llama-server whose
chat template refuses system messages that are not the first message.
"""

import argparse
import http.server
import sys
import threading
from pathlib import Path

from launcher.agents.agent import find_agent
from tools.prove_agents.cold_starts import prove_cold_starts
from tools.prove_agents.late_system import prove_late_system
from tools.prove_agents.misfortunes import prove_misfortunes
from tools.prove_agents.transcript import insert_transcripts, save_transcript
from tools.prove_agents.turns import HEADLESS, prove_agent
from tools.prove_agents.workplace import RecordingProxy, install_agents, make_workplace


def main() -> int:
    """Run the agents. Exit code 1 if one of them failed."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("folder", type=Path, help="an empty folder, or one of an earlier run")
    parser.add_argument("agents", nargs="*", metavar="AGENT", help=f"default: {', '.join(HEADLESS)}")
    parser.add_argument("--misfortunes", action="store_true", help="only print how each handles the errors of a server")
    parser.add_argument(
        "--late-system", action="store_true", help="only try a template that refuses late system messages"
    )
    parser.add_argument(
        "--cold", action="store_true", help="only print what sessions with a new server each read again"
    )
    parser.add_argument("--llama-server", type=Path, help="the engine of --late-system (default: the built-in one)")
    parser.add_argument(
        "--template", type=Path, help="the template of --late-system, such as Qwen3.5's (default: one with its guard)"
    )
    parser.add_argument("--docs", type=Path, metavar="FILE", help="put the transcripts into a document")
    options = parser.parse_intermixed_args()
    folder = options.folder.absolute()
    folder.mkdir(parents=True, exist_ok=True)
    agents = [find_agent(name) for name in options.agents or HEADLESS]
    if options.late_system:
        agents = [agent for agent in agents if agent.late_system]
    install_agents(folder, agents)
    proxy = http.server.ThreadingHTTPServer(("127.0.0.1", 0), RecordingProxy)
    threading.Thread(target=proxy.serve_forever, daemon=True).start()
    passed = 0
    for agent in agents:
        RecordingProxy.hosts.clear()
        place = make_workplace(folder, agent, proxy.server_address[1])
        if options.misfortunes:
            print(f"| {agent.title} |", " | ".join(prove_misfortunes(place)), "|", flush=True)
            passed += 1
            continue
        if options.cold:
            cells, read_little = prove_cold_starts(place)
            passed += read_little
            print(f"| {' | '.join(cells)} |", flush=True)
            continue
        if options.late_system:
            passed += prove_late_system(place, options.llama_server, options.template)
            continue
        outcome = prove_agent(place)
        outcome.reached = sorted(RecordingProxy.hosts)
        passed += outcome.passed
        save_transcript(folder / "transcripts", agent.name, outcome.title, outcome.steps, outcome.describe_session())
        print(outcome.as_row(), flush=True)
    if options.docs is not None:
        insert_transcripts(options.docs, folder / "transcripts")
    print(f"{passed} passed, {len(agents) - passed} failed")
    return 0 if passed == len(agents) else 1


if __name__ == "__main__":
    sys.exit(main())
