"""Environment variables of an engine: the user's environment without llama.cpp's settings and without secrets.

Names are listed to be removed, not to be kept, because GPU drivers and runtimes use too many variables. LD_PRELOAD and
LD_LIBRARY_PATH are kept: anyone who can set them already has the user's rights.
"""

import atexit
import logging
import os
import re
import sys
import tempfile
from collections.abc import Mapping
from functools import cache
from pathlib import Path

from launcher.base.files import make_folder
from launcher.base.paths import cache_dir
from launcher.machine.sysfs import ROOT, has_amd_gpu, has_small_bar

_SETTINGS_PREFIXES = ("LLAMA_", "HF_")
_SETTINGS = frozenset({"MTMD_BACKEND_DEVICE", "AIP_MODE"})
"""Variables without such a prefix that llama-server reads as settings."""
_SECRETS = re.compile(
    r"(?:.*_)?(?:TOKEN|KEY|APIKEY|SECRET|PASSWORD|PASSWD|PASS|PASSPHRASE|PAT|CREDENTIALS?|AUTH|COOKIE|DSN)S?(?:_.*)?"
    r"|(?:AWS|AZURE|GOOGLE|GITHUB|GITLAB|GH|CI|OPENAI|ANTHROPIC|VAULT|KUBE|DOCKER)_.*|KUBECONFIG|NETRC"
    r"|.*(?:DATABASE|REDIS|MONGO|POSTGRES|AMQP).*_UR[LI]|PG(?:PASS.*|SERVICE.*)|KRB5.*|SSH_.*|GPG_AGENT_INFO|GNUPGHOME"
    r"|.+_PWD|.*_PROXY|PIP_.*INDEX_URL|UV_.*INDEX.*",
    re.IGNORECASE,
)
"""Variables that may hold secrets of other programs: keys, passwords, agent sockets, and URLs with passwords. No engine
needs them."""
_PARENT_PROTOCOL = "LLAMA_SERVER_ROUTER_PORT"
"""Turns on llama.cpp's router protocol, by which the engine reports its loading progress."""
_API_KEY = "LLAMA_API_KEY"
_RADV_FLAGS, _NO_SPILL = "RADV_PERFTEST", "nogttspill"
"""A variable of Mesa's driver for AMD, which others ignore, and the flag that keeps GPU memory in place."""
_NO_HOST_VISIBLE = "GGML_VK_DISABLE_HOST_VISIBLE_VIDMEM"
"""A variable of llama.cpp that keeps buffers out of the small region through which the processor reaches a card."""
_log = logging.getLogger(__name__)


def engine_environment(
    *, api_key: str | None = None, reports_loading: bool = False, inherited: Mapping[str, str] | None = None
) -> dict[str, str]:
    """Return the environment for an engine process.

    Variables that llama-server reads as settings are removed, and so are secrets. llama-server looks for its per-user
    settings file in an empty folder of this program. The API key is passed here and not as an argument, because all
    users of the computer can read a process's arguments. With `reports_loading`, the engine prints its loading progress
    like a child of llama.cpp's router, and ends when its standard input ends. `inherited` replaces this process's
    environment.
    """
    inherited = os.environ if inherited is None else inherited
    environment = {
        name: value
        for name, value in inherited.items()
        if not name.startswith(_SETTINGS_PREFIXES) and name not in _SETTINGS and not _SECRETS.fullmatch(name)
    }
    environment |= added_environment(inherited)
    if api_key:
        environment[_API_KEY] = api_key
    if reports_loading:
        environment[_PARENT_PROTOCOL] = "1"
    return environment


def added_environment(inherited: Mapping[str, str] | None = None, *, root: Path = ROOT) -> dict[str, str]:
    """Return the variables that are set for an engine, besides its API key.

    The first makes llama-server look for its settings file in an empty folder of this program. The second, on Linux
    with an AMD GPU, keeps Mesa from moving GPU memory to the host when little is free: Gemma 4 26B-A4B then ran at 136
    instead of 51 to 60 tokens/s on an RX 7900 XTX after a prompt of 1,361 tokens (llama.cpp #24066). The third is for
    an AMD GPU with Resizable BAR off: Qwen3.8-27B then ran at 36.9 instead of 13.9 tokens/s (llama.cpp #27097).
    `inherited` and `root` replace this process's environment and the root folder.
    """
    inherited = os.environ if inherited is None else inherited
    environment = {"APPDATA" if sys.platform == "win32" else "XDG_CONFIG_HOME": str(_settings_folder())}
    if has_amd_gpu(root):  # only Linux lists its GPUs there
        flags = [flag for flag in inherited.get(_RADV_FLAGS, "").split(",") if flag]
        environment[_RADV_FLAGS] = ",".join(dict.fromkeys([*flags, _NO_SPILL]))
        if has_small_bar(root) and _NO_HOST_VISIBLE not in inherited:
            environment[_NO_HOST_VISIBLE] = "1"
    return environment


def _settings_folder() -> Path:
    """Return the empty settings folder for engines; if it cannot be created, one that this program deletes at exit."""
    folder = cache_dir() / "engine-settings"
    try:
        make_folder(folder)
    except OSError as error:
        return _temporary_settings_folder(folder, str(error.strerror or error))
    return folder


@cache
def _temporary_settings_folder(folder: Path, why: str) -> Path:
    temporary = tempfile.TemporaryDirectory(prefix="mtp-launcher-", ignore_cleanup_errors=True)
    atexit.register(temporary.cleanup)
    _log.warning("Cannot create %s: %s. The engine gets a temporary folder for this run.", folder, why)
    return Path(temporary.name)


def system_settings_file() -> Path | None:
    """Return llama.cpp's system-wide settings file, None if there is none. No variable makes llama-server ignore it."""
    if sys.platform == "win32":
        path = Path(os.environ.get("PROGRAMDATA", "C:/ProgramData")) / "llama.cpp" / "config.ini"
    else:
        path = Path("/etc/llama.cpp/config.ini")
    return path if path.exists() else None
