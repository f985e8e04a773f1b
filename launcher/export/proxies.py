"""Configuration files of two programs that start servers on demand: llama-swap, and llama-server's router."""

import re
import sys

from launcher.base.errors import BadOption
from launcher.base.messages import message
from launcher.export import quoting
from launcher.export.recipe import EngineOption, ExportRecipe
from launcher.export.shell import KEY_VARIABLE

_SWAP_KEY = "LLAMA_SWAP_API_KEY"
"""Not llama-server's own variable: the servers that llama-swap starts would inherit it and require the key, too."""
_ROUTER_FLAGS = frozenset({"--cors-origins", "--log-colors", "--verbosity", "--metrics"})
"""Flags that the router sets itself or passes to all its servers."""


def llama_swap_config(recipes: tuple[ExportRecipe, ...], *, windows: bool = sys.platform == "win32") -> str:
    """Return a configuration for llama-swap, which checks the key itself and starts the servers without one.

    llama-swap splits commands by line, and its macros begin with ${ (internal/config/commands.go, load.go). Raises
    BadOption for words that contain a line break, or ${ where it cannot be quoted.
    """
    first = recipes[0]
    key = quoting.quote_yaml(first.api_key) if first.api_key else f'"${{env.{_SWAP_KEY}}}"'
    lines = [
        f"# llama-swap --config FILE --listen {first.host}:{first.port}",
        f"# The key is in {_SWAP_KEY}; {KEY_VARIABLE} must not be set, or the servers behind would want one, too.",
        "healthCheckTimeout: 600",
        "apiKeys:",
        f"  - {key}",
        "models:",
        *(line for recipe in recipes for line in _swap_lines(recipe, windows=windows)),
    ]
    return "\n".join(lines) + "\n"


def _swap_lines(recipe: ExportRecipe, *, windows: bool) -> list[str]:
    """Return llama-swap's entry of one model."""
    words = [*recipe.program, *recipe.build_arguments()]
    for word in words:
        if "\n" in word:
            raise _cannot_export(word, "llama-swap reads commands line by line", "a line break")
    for word in words if windows else (recipe.name,):  # on Windows only: a POSIX shell's quotes can break up a macro
        if "${" in word:
            raise _cannot_export(word, "llama-swap takes ${ for a macro", "${")
    port = words.index("--port") + 1
    before, after = (quoting.quote_swap_line(part, windows=windows) for part in (words[:port], words[port + 1 :]))
    variables = [f"      - {quoting.quote_yaml(f'{name}={value}')}" for name, value in recipe.environment.items()]
    return [
        f"  {quoting.quote_yaml(recipe.name)}:",
        f"    cmd: {quoting.quote_yaml(f'{before} ${{PORT}} {after}')}",
        '    proxy: "http://127.0.0.1:${PORT}"',
        '    checkEndpoint: "/health"',
        *(["    env:", *variables] if variables else []),
    ]


def router_preset(recipes: tuple[ExportRecipe, ...]) -> str:
    """Return a file of presets for llama-server's router (common/preset.cpp, b11434).

    The options that the router passes to all its servers are those of the first recipe. Raises BadOption for values
    that the format cannot hold: it cuts them at a line break, a semicolon or a hash sign, and drops surrounding spaces.
    """
    first = recipes[0]
    options = " ".join(
        f"{flag}{f' {value}' if value else ''}" for flag, value in first.options if flag in _ROUTER_FLAGS
    )
    lines = [
        f"; llama-server --models-preset FILE --host {first.host} --port {first.port} "
        f"{quoting.clean_comment(options)}".rstrip(),
        f"; with the key in {KEY_VARIABLE}",
        "version = 1",
        *(line for recipe in recipes for line in _preset_lines(recipe)),
    ]
    return "\n".join(lines) + "\n"


def _preset_lines(recipe: ExportRecipe) -> list[str]:
    """Return the section of one model."""
    model: EngineOption = ("--model", recipe.model)
    values: dict[str, str] = {}
    for flag, value in (model, *recipe.options):
        if flag in _ROUTER_FLAGS:
            continue
        if flag == "--spec-type" and flag in values:  # the only repeated flag whose values llama-server combines
            values[flag] += f",{value}"
        else:
            values[flag] = "on" if value is None else value
    name = recipe.name
    if re.search(r"[\]\r\n]", name) or name != name.strip() or name in ("*", ""):
        raise _cannot_export(
            name, "llama-server's router does not accept such a name", "a bracket, a line break or outer spaces"
        )
    for value in values.values():
        if re.search(r"[;#\r\n]", value) or value != value.strip():
            raise _cannot_export(
                value,
                "llama-server's preset files cannot contain such a value",
                "a semicolon, a hash sign, a line break or outer spaces",
            )
    return ["", f"[{name}]", *(f"{flag.lstrip('-')} = {value}" for flag, value in values.items())]


def _cannot_export(word: str, reason: str, forbidden: str) -> BadOption:
    return BadOption(
        message("{word} cannot be exported: {why}.", word=quoting.clean_comment(word), why=reason),
        message("Use a name without {what}.", what=forbidden),
    )
