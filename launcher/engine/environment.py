"""The environment an engine runs in: the user's own, less what would change its settings, and less all secrets.

What is left out is named, and all else stays: drivers and runtimes of GPUs are steered by too many variables to list.
LD_PRELOAD, LD_LIBRARY_PATH and the like are among them and stay: whoever can set them is the user already.
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

_SETTINGS_PREFIXES = ("LLAMA_", "HF_")
_SETTINGS = frozenset({"MTMD_BACKEND_DEVICE", "AIP_MODE"})
_SECRETS = re.compile(
    r"(?:.*_)?(?:TOKEN|KEY|APIKEY|SECRET|PASSWORD|PASSWD|PASS|PASSPHRASE|PAT|CREDENTIALS?|AUTH|COOKIE|DSN)S?(?:_.*)?"
    r"|(?:AWS|AZURE|GOOGLE|GITHUB|GITLAB|GH|CI|OPENAI|ANTHROPIC|VAULT|KUBE|DOCKER)_.*|KUBECONFIG|NETRC"
    r"|.*(?:DATABASE|REDIS|MONGO|POSTGRES|AMQP).*_UR[LI]|PG(?:PASS.*|SERVICE.*)|KRB5.*|SSH_.*|GPG_AGENT_INFO|GNUPGHOME"
    r"|.+_PWD|.*_PROXY|PIP_.*INDEX_URL|UV_.*INDEX.*",
    re.IGNORECASE,
)
"""Names of what other programs keep in the environment for themselves: keys, passwords, agents, and addresses that may
hold a password. No engine needs them."""
_PARENT_PROTOCOL = "LLAMA_SERVER_ROUTER_PORT"
_API_KEY = "LLAMA_API_KEY"
_log = logging.getLogger(__name__)


def engine_environment(
    *, api_key: str | None = None, reports_loading: bool = False, inherited: Mapping[str, str] | None = None
) -> dict[str, str]:
    """Return the environment for an engine.

    The variables that llama-server takes for settings are left out, and so are secrets; its per-user settings file is
    looked for in a folder of ours. The API key goes here and not among the arguments, which every user can read.
    With `reports_loading` the engine prints how far it has loaded, as a child of llama.cpp's router does; it
    then also ends when its standard input ends.
    """
    inherited = os.environ if inherited is None else inherited
    environment = {
        name: value
        for name, value in inherited.items()
        if not name.startswith(_SETTINGS_PREFIXES) and name not in _SETTINGS and not _SECRETS.fullmatch(name)
    }
    environment["APPDATA" if sys.platform == "win32" else "XDG_CONFIG_HOME"] = str(_settings_folder())
    if api_key:
        environment[_API_KEY] = api_key
    if reports_loading:
        environment[_PARENT_PROTOCOL] = "1"
    return environment


def _settings_folder() -> Path:
    """Return the empty folder where the engine looks for settings; where ours cannot be made, one for this run."""
    folder = cache_dir() / "engine-settings"
    try:
        make_folder(folder)
    except OSError as error:
        return _settings_of_this_run(folder, str(error.strerror or error))
    return folder


@cache
def _settings_of_this_run(folder: Path, why: str) -> Path:
    made = tempfile.TemporaryDirectory(prefix="mtp-launcher-", ignore_cleanup_errors=True)
    atexit.register(made.cleanup)
    _log.warning("%s cannot be made: %s. The engine gets a folder in its place for this run.", folder, why)
    return Path(made.name)


def system_settings() -> Path | None:
    """Return the system-wide settings file of llama.cpp, which no environment keeps out, if there is one."""
    if sys.platform == "win32":
        path = Path(os.environ.get("PROGRAMDATA", "C:/ProgramData")) / "llama.cpp" / "config.ini"
    else:
        path = Path("/etc/llama.cpp/config.ini")
    return path if path.exists() else None
