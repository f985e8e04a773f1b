"""Renders a server to export in one of the formats, by the format's name."""

import sys
from typing import Literal, get_args

from launcher.export import clients, monitoring, proxies, shell
from launcher.export.compose import compose_file
from launcher.export.recipe import ExportRecipe
from launcher.export.systemd import systemd_unit

ExportKind = Literal[
    "command",
    "script",
    "compose",
    "systemd",
    "curl",
    "python",
    "typescript",
    "llama-swap",
    "router-ini",
    "prometheus",
    "grafana",
]
KINDS: tuple[ExportKind, ...] = get_args(ExportKind)
Shell = Literal["bash", "powershell"]


def render_export(kind: ExportKind, recipe: ExportRecipe, *, for_shell: Shell | None = None) -> str:
    """Return `recipe` in an export format. Raises BadOption for content that the format cannot express.

    Commands and scripts are for `for_shell`, by default PowerShell on Windows and bash elsewhere.
    """
    windows = sys.platform == "win32"
    powershell = for_shell == "powershell" if for_shell else windows
    match kind:
        case "command":
            return shell.powershell_command(recipe) if powershell else shell.bash_command(recipe)
        case "script":
            return shell.powershell_script(recipe) if powershell else shell.bash_script(recipe)
        case "compose":
            return compose_file(recipe)
        case "systemd":
            return systemd_unit(recipe)
        case "curl":
            return clients.curl_request(recipe)
        case "python":
            return clients.python_program(recipe)
        case "typescript":
            return clients.typescript_program(recipe)
        case "llama-swap":
            return proxies.llama_swap_config(recipe, windows=windows)
        case "router-ini":
            return proxies.router_preset(recipe)
        case "prometheus":
            return monitoring.prometheus_config(recipe)
        case "grafana":
            return monitoring.grafana_board()
