"""The kinds of export by their names."""

import sys
from typing import Literal, get_args

from launcher.export import clients, proxies, shell
from launcher.export.compose import compose
from launcher.export.recipe import Recipe
from launcher.export.unit import systemd_unit

Kind = Literal["command", "script", "compose", "systemd", "curl", "python", "typescript", "llama-swap", "router-ini"]
KINDS: tuple[Kind, ...] = get_args(Kind)
Shell = Literal["bash", "powershell"]


def render(kind: Kind, recipe: Recipe, *, for_shell: Shell | None = None) -> str:
    """Return `recipe` as text of a kind. Commands and scripts are for `for_shell`, or this system's usual one.

    Raises BadOption for what a kind cannot express.
    """
    windows = sys.platform == "win32"
    powershell = for_shell == "powershell" if for_shell else windows
    match kind:
        case "command":
            return shell.powershell_command(recipe) if powershell else shell.bash_command(recipe)
        case "script":
            return shell.powershell_script(recipe) if powershell else shell.bash_script(recipe)
        case "compose":
            return compose(recipe)
        case "systemd":
            return systemd_unit(recipe)
        case "curl":
            return clients.curl(recipe)
        case "python":
            return clients.python(recipe)
        case "typescript":
            return clients.typescript(recipe)
        case "llama-swap":
            return proxies.llama_swap(recipe, windows=windows)
        case "router-ini":
            return proxies.router_ini(recipe)
