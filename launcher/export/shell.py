"""Exports as one command line and as a script, for bash and PowerShell."""

from launcher.export import quoting
from launcher.export.formats import Shell
from launcher.export.recipe import ExportRecipe

KEY_VARIABLE = "LLAMA_API_KEY"
"""The variable from which llama-server reads its key (common/arg.cpp), so that no process list shows it."""
_KEY_MISSING = "Set LLAMA_API_KEY to the API key"


def start_command(recipe: ExportRecipe, *, shell: Shell) -> str:
    """Return one line that starts the engine."""
    return powershell_command(recipe) if shell == "powershell" else bash_command(recipe)


def start_script(recipe: ExportRecipe, *, shell: Shell) -> str:
    """Return a script that starts the engine."""
    return powershell_script(recipe) if shell == "powershell" else bash_script(recipe)


def bash_command(recipe: ExportRecipe) -> str:
    """Return one line for bash. Without a key in the recipe it requires LLAMA_API_KEY in the shell."""
    key = f'"${{{KEY_VARIABLE}:?{_KEY_MISSING}}}"' if recipe.api_key is None else quoting.quote_bash(recipe.api_key)
    variables = " ".join(f"{name}={quoting.quote_bash(value)}" for name, value in recipe.environment.items())
    command = quoting.quote_bash_line((*recipe.program, *recipe.build_arguments()))
    return " ".join(filter(None, (f"{KEY_VARIABLE}={key}", variables, command))) + "\n"


def powershell_command(recipe: ExportRecipe) -> str:
    """Return one line for PowerShell. Without a key in the recipe it requires LLAMA_API_KEY in the environment."""
    if recipe.api_key is None:
        parts = [f"if (-not $env:{KEY_VARIABLE}) {{ throw {quoting.quote_powershell(_KEY_MISSING)} }}"]
    else:
        parts = [f"$env:{KEY_VARIABLE} = {quoting.quote_powershell(recipe.api_key)}"]
    parts += [f"$env:{name} = {quoting.quote_powershell(value)}" for name, value in recipe.environment.items()]
    parts.append(quoting.quote_powershell_line((*recipe.program, *recipe.build_arguments())))
    return "; ".join(parts) + "\n"


def bash_script(recipe: ExportRecipe) -> str:
    """Return a script for bash. Without a key in the recipe it reads LLAMA_API_KEY or a private file.

    The script unsets the variables, and hides the folder, from which llama-server would read further settings.
    """
    if recipe.api_key is None:
        key = f"""\
# The key: {KEY_VARIABLE}, or the first line of this file, which nobody else may read.
key_file="${{LLAMA_API_KEY_FILE:-${{HOME:-}}/.config/mtp-launcher/llama-api-key}}"
if [[ -z "${{{KEY_VARIABLE}:-}}" ]]; then
  if [[ ! -r "$key_file" ]]; then
    echo "No API key. Make one: (umask 077; mkdir -p \\"${{key_file%/*}}\\"; openssl rand -hex 32 >\\"$key_file\\")" >&2
    exit 1
  fi
  read -r {KEY_VARIABLE} <"$key_file"
fi
export {KEY_VARIABLE}
"""
    else:
        key = f"export {KEY_VARIABLE}={quoting.quote_bash(recipe.api_key)}\n"
    words = [*recipe.program, *recipe.build_arguments()]
    variables = "".join(f"export {name}={quoting.quote_bash(value)}\n" for name, value in recipe.environment.items())
    return f"""\
#!/usr/bin/env bash
# Serves {quoting.clean_comment(recipe.name)} at {recipe.url}; Ctrl-C ends it.
set -euo pipefail

# llama-server reads settings from these, too.
for name in "${{!LLAMA_ARG_@}}"; do unset "$name"; done
export XDG_CONFIG_HOME=/var/empty

{key}{variables}
exec {_fold_options(words)}
"""


def powershell_script(recipe: ExportRecipe) -> str:
    """Return a script for PowerShell: see bash_script."""
    if recipe.api_key is None:
        key = f"""\
# The key: {KEY_VARIABLE}, or the first line of a file in your profile.
$keyFile = $env:LLAMA_API_KEY_FILE
if (-not $keyFile) {{ $keyFile = "$env:LOCALAPPDATA\\mtp-launcher\\llama-api-key" }}
if (-not $env:{KEY_VARIABLE}) {{
    if (-not (Test-Path -LiteralPath $keyFile)) {{ throw "No API key. Write one into $keyFile." }}
    $env:{KEY_VARIABLE} = Get-Content -LiteralPath $keyFile -TotalCount 1
}}
"""
    else:
        key = f"$env:{KEY_VARIABLE} = {quoting.quote_powershell(recipe.api_key)}\n"
    variables = "".join(
        f"$env:{name} = {quoting.quote_powershell(value)}\n" for name, value in recipe.environment.items()
    )
    line = quoting.quote_powershell_line((*recipe.program, *recipe.build_arguments()))
    starts_process = line.startswith("Start-Process")  # Start-Process does not set $LASTEXITCODE
    run = f"exit ({line} -PassThru).ExitCode" if starts_process else f"{line}\nexit $LASTEXITCODE"
    return f"""\
# Serves {quoting.clean_comment(recipe.name)} at {recipe.url}; Ctrl-C ends it.
$ErrorActionPreference = 'Stop'

# llama-server reads settings from these, too.
Get-ChildItem Env:LLAMA_ARG_* | Remove-Item

{key}{variables}
{run}
"""


def _fold_options(words: list[str]) -> str:
    """Return a command line for bash with each option on its own line."""
    lines: list[str] = []
    for word in words:
        if not lines or word.startswith("--"):
            lines.append(quoting.quote_bash(word))
        else:
            lines[-1] += f" {quoting.quote_bash(word)}"
    return " \\\n  ".join(lines)
