"""Configuration for two programs that start servers on demand: llama-swap, and llama-server's router."""

import re

from launcher.base.errors import BadOption
from launcher.base.messages import message
from launcher.export import quoting
from launcher.export.recipe import EngineOption, ExportRecipe
from launcher.export.shell import KEY_VARIABLE

_SWAP_KEY = "LLAMA_SWAP_API_KEY"
"""Not llama-server's own variable: the servers that llama-swap starts would inherit it and require the key, too."""
_ROUTERS = frozenset({"--cors-origins", "--no-ui", "--log-colors", "--verbosity", "--metrics"})
"""Flags that the router sets itself or passes to all its servers."""


def llama_swap_config(recipe: ExportRecipe, *, windows: bool) -> str:
    """Return a configuration for llama-swap, which checks the key itself and starts the server without one.

    llama-swap splits commands by line, and its macros begin with ${ (internal/config/commands.go, load.go). Raises
    BadOption for a name with a line break.
    """
    words = [*recipe.program, *recipe.build_arguments()]
    for word in words:
        if "\n" in word:
            raise _unwritable_error(word, "llama-swap reads commands line by line", "a line break")
    for word in words if windows else (recipe.name,):  # on Windows only: a POSIX shell's quotes can break up a macro
        if "${" in word:
            raise _unwritable_error(word, "llama-swap takes ${ for a macro", "${")
    place = words.index("--port") + 1
    before = quoting.quote_swap_line(words[:place], windows=windows)
    command = f"{before} ${{PORT}} {quoting.quote_swap_line(words[place + 1 :], windows=windows)}"
    key = quoting.quote_yaml(recipe.api_key) if recipe.api_key else f'"${{env.{_SWAP_KEY}}}"'
    variables = [f"      - {quoting.quote_yaml(f'{name}={value}')}" for name, value in recipe.environment.items()]
    lines = [
        f"# llama-swap --config FILE --listen {recipe.host}:{recipe.port}",
        f"# The key is in {_SWAP_KEY}; {KEY_VARIABLE} must not be set, or the servers behind would want one, too.",
        "healthCheckTimeout: 600",
        "apiKeys:",
        f"  - {key}",
        "models:",
        f"  {quoting.quote_yaml(recipe.name)}:",
        f"    cmd: {quoting.quote_yaml(command)}",
        '    proxy: "http://127.0.0.1:${PORT}"',
        '    checkEndpoint: "/health"',
        *(["    env:", *variables] if variables else []),
    ]
    return "\n".join(lines) + "\n"


def router_preset(recipe: ExportRecipe) -> str:
    """Return a preset file for llama-server's router (common/preset.cpp, b11434).

    Raises BadOption for values that the format cannot hold: they end at a line break, a semicolon or a hash sign, and
    lose surrounding spaces.
    """
    options = " ".join(f"{flag}{f' {value}' if value else ''}" for flag, value in recipe.options if flag in _ROUTERS)
    shared = quoting.clean_comment(options)
    own: tuple[EngineOption, ...] = (("--model", recipe.model), *recipe.options)
    told: dict[str, str] = {}
    for flag, value in own:
        if flag in _ROUTERS:
            continue
        before = told.get(flag)
        adds = flag == "--spec-type" and before is not None  # the only repeated flag whose values llama-server combines
        told[flag] = f"{before},{value}" if adds else "on" if value is None else value
    name = recipe.name
    if re.search(r"[\]\r\n]", name) or name != name.strip() or name in ("*", ""):
        raise _unwritable_error(
            name, "The router's names of models cannot hold it", "a bracket, a line break or outer spaces"
        )
    for value in told.values():
        if re.search(r"[;#\r\n]", value) or value != value.strip():
            what = "a semicolon, a hash sign, a line break or outer spaces"
            raise _unwritable_error(value, "The router's presets cannot hold it", what)
    lines = [
        f"; llama-server --models-preset FILE --host {recipe.host} --port {recipe.port} {shared}".rstrip(),
        f"; with the key in {KEY_VARIABLE}",
        "version = 1",
        "",
        f"[{name}]",
        *(f"{flag.lstrip('-')} = {value}" for flag, value in told.items()),
    ]
    return "\n".join(lines) + "\n"


def _unwritable_error(word: str, why: str, what: str) -> BadOption:
    return BadOption(
        message("{word} cannot be exported: {why}.", word=quoting.clean_comment(word), why=why),
        message("Use a name without {what}.", what=what),
    )
