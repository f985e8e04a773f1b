"""The table of export formats. A new one is a row here, and the function that the row names.

The functions are named, not imported, so that `export --help` does not load them all.
"""

from __future__ import annotations

import sys
from collections.abc import Mapping
from dataclasses import dataclass
from enum import Enum
from importlib import import_module
from typing import TYPE_CHECKING, Literal

from launcher.base.messages import mark

if TYPE_CHECKING:
    from launcher.export.recipe import ExportRecipe
    from launcher.export.served_models import GatewayModels

Shell = Literal["bash", "powershell"]


class Subject(Enum):
    """The subject of an export: one server, all models of this computer, or gateways that run, here or elsewhere."""

    SERVER = "server"
    LIBRARY = "library"
    GATEWAYS = "gateways"


@dataclass(frozen=True, slots=True)
class ExportFormat:
    """A format. `function` is the function that renders it, as MODULE.NAME within this package.

    It gets the recipe of a server, the recipes of all models, or the gateways; if the text is `for_shells`, also the
    shell, as the keyword argument `shell`. `peers_function` renders gateways in a format whose usual subject is another
    one. `label` is its name in the window, empty for a format that the window does not offer.
    """

    name: str
    help: str
    function: str
    subject: Subject = Subject.SERVER
    for_shells: bool = False
    executable: bool = False
    peers_function: str | None = None
    label: str = ""

    @property
    def takes_peers(self) -> bool:
        """Whether the format can put several gateways behind the program that it is for."""
        return self.subject is Subject.GATEWAYS or self.peers_function is not None


FORMATS: Mapping[str, ExportFormat] = {
    each.name: each
    for each in (
        ExportFormat(
            "command",
            "one line that starts the engine",
            "shell.start_command",
            for_shells=True,
            label=mark("Command line"),
        ),
        ExportFormat(
            "script",
            "a script that starts the engine",
            "shell.start_script",
            for_shells=True,
            executable=True,
            label=mark("Script"),
        ),
        ExportFormat(
            "compose", "a compose file for Docker or Podman", "compose.compose_file", label=mark("Docker Compose")
        ),
        ExportFormat("systemd", "a unit of the user's systemd", "systemd.systemd_unit", label=mark("systemd unit")),
        ExportFormat("curl", "a request for curl", "clients.curl_request", label=mark("curl")),
        ExportFormat("python", "a client program in Python", "clients.python_program", label=mark("Python")),
        ExportFormat(
            "typescript", "a client program in TypeScript", "clients.typescript_program", label=mark("TypeScript")
        ),
        ExportFormat(
            "env",
            "variables of OpenAI's and Anthropic's SDKs",
            "client_variables.sdk_variables",
            for_shells=True,
            label=mark("Environment variables"),
        ),
        ExportFormat("aider", "for aider: .aider.conf.yml", "client_files.aider_config", label=mark("aider")),
        ExportFormat(
            "claude-code",
            "for Claude Code: variables",
            "client_variables.claude_code_variables",
            for_shells=True,
            label=mark("Claude Code"),
        ),
        ExportFormat("codex", "for Codex: config.toml", "client_files.codex_config", label=mark("Codex")),
        ExportFormat("continue", "for Continue: config.yaml", "client_files.continue_config", label=mark("Continue")),
        ExportFormat(
            "open-webui",
            "for Open WebUI: variables",
            "client_variables.webui_variables",
            for_shells=True,
            label=mark("Open WebUI"),
        ),
        ExportFormat("opencode", "for opencode: opencode.json", "client_files.opencode_config", label=mark("opencode")),
        ExportFormat(
            "vscode", "for VS Code: chatLanguageModels.json", "client_files.vscode_models", label=mark("VS Code")
        ),
        ExportFormat(
            "llama-swap",
            "all models; with --peers several gateways",
            "proxies.llama_swap_config",
            Subject.LIBRARY,
            peers_function="gateway_routers.llama_swap_peers",
            label=mark("llama-swap entry"),
        ),
        ExportFormat(
            "router-ini",
            "all models, for llama-server's router",
            "proxies.router_preset",
            Subject.LIBRARY,
            label=mark("llama-server router entry"),
        ),
        ExportFormat("litellm", "several gateways behind LiteLLM", "gateway_routers.litellm_config", Subject.GATEWAYS),
        ExportFormat(
            "gpustack", "several gateways behind GPUStack", "gateway_routers.gpustack_calls", Subject.GATEWAYS
        ),
        ExportFormat("prometheus", "a scrape configuration for Prometheus", "monitoring.prometheus_config"),
        ExportFormat("grafana", "a board for Grafana", "monitoring.grafana_board"),
    )
}


def usual_shell() -> Shell:
    """Return the shell that users of this system have."""
    return "powershell" if sys.platform == "win32" else "bash"


def render_export(
    export_format: ExportFormat,
    subject: ExportRecipe | tuple[ExportRecipe, ...] | tuple[GatewayModels, ...],
    *,
    shell: Shell | None = None,
    peers: bool = False,
) -> str:
    """Return the text of an export. Raises BadOption for content that the format cannot express.

    `subject` is what the format exports; with `peers`, gateways. A text for a shell is for `shell`, by default the
    usual one of this system.
    """
    function = export_format.peers_function if peers and export_format.peers_function else export_format.function
    module, _, name = function.rpartition(".")
    options = {"shell": shell or usual_shell()} if export_format.for_shells else {}
    text: str = getattr(import_module(f"launcher.export.{module}"), name)(subject, **options)
    return text
