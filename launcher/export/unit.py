"""A unit for the user's own systemd."""

from launcher.export import quoting
from launcher.export.recipe import Recipe
from launcher.export.shell import KEY_VARIABLE

_KEY_FILE = "%h/.config/mtp-launcher/llama-api-key"
UNIT = "llama-server.service"


def systemd_unit(recipe: Recipe) -> str:
    """Return a service of the user's: the key as a credential (systemd 250 or newer), restarts with an end, limits."""
    option = () if recipe.api_key else (("--api-key-file", "%d/llama-api-key"),)
    words = recipe.arguments()
    line = " ".join(
        (
            quoting.systemd(recipe.program[0], program=True),
            *map(quoting.systemd, (*recipe.program[1:], *words)),
            *(word for pair in option for word in pair),
        )
    )
    variables = {"XDG_CONFIG_HOME": "/var/empty", **recipe.environment}
    if recipe.api_key:
        variables[KEY_VARIABLE] = recipe.api_key
        key = ""
    else:
        key = f"LoadCredential=llama-api-key:{_KEY_FILE}\n"
    # A dollar sign means nothing in Environment= (systemd.exec(5)).
    assignments = (quoting.systemd(f"{name}={value}", program=True) for name, value in variables.items())
    environment = "".join(f"Environment={assignment}\n" for assignment in assignments)
    make_key = (
        "" if recipe.api_key else f"# Its key: (umask 077; openssl rand -hex 32 >{_KEY_FILE.replace('%h', '~')})\n"
    )
    return f"""\
# ~/.config/systemd/user/{UNIT}
{make_key}# Then: systemctl --user daemon-reload && systemctl --user enable --now {UNIT}
[Unit]
Description=llama-server with {quoting.comment(recipe.name).replace("%", "%%")}
StartLimitIntervalSec=300
StartLimitBurst=4

[Service]
Type=exec
{environment}{key}ExecStart={line}
Restart=on-failure
RestartSec=5
TimeoutStopSec=15
UMask=0077
NoNewPrivileges=yes
TasksMax=1024
LimitCORE=0
OOMPolicy=stop

[Install]
WantedBy=default.target
"""
