"""Export as a unit of the user's systemd."""

from launcher.export import quoting
from launcher.export.recipe import ExportRecipe
from launcher.export.shell import KEY_VARIABLE

_KEY_FILE = "%h/.config/mtp-launcher/llama-api-key"
"""systemd replaces %h by the home folder, and %d by the folder of credentials (systemd.unit(5))."""
_UNIT_NAME = "llama-server.service"


def systemd_unit(recipe: ExportRecipe) -> str:
    """Return the unit file. Without a key in the recipe it reads one as a credential, which needs systemd 250."""
    # llama-server reads further settings from this folder, so it gets an empty one.
    variables = {"XDG_CONFIG_HOME": "/var/empty", **recipe.environment}
    if recipe.api_key:
        variables[KEY_VARIABLE] = recipe.api_key
        key_option, credential, make_key = "", "", ""
    else:
        key_option = " --api-key-file %d/llama-api-key"
        credential = f"LoadCredential=llama-api-key:{_KEY_FILE}\n"
        make_key = f"# Its key: (umask 077; openssl rand -hex 32 >{_KEY_FILE.replace('%h', '~')})\n"
    words = (*recipe.program[1:], *recipe.build_arguments())
    program = quoting.quote_systemd(recipe.program[0], program=True)
    command = " ".join((program, *map(quoting.quote_systemd, words))) + key_option
    # A dollar sign has no meaning in Environment= (systemd.exec(5)).
    assignments = (quoting.quote_systemd(f"{name}={value}", program=True) for name, value in variables.items())
    environment = "".join(f"Environment={assignment}\n" for assignment in assignments)
    # The name must not end its line: systemd would join the next line after a trailing backslash.
    return f"""\
# ~/.config/systemd/user/{_UNIT_NAME}
{make_key}# Then: systemctl --user daemon-reload && systemctl --user enable --now {_UNIT_NAME}
[Unit]
Description=llama-server with {quoting.clean_comment(recipe.name).replace("%", "%%")} at {recipe.url}
StartLimitIntervalSec=300
StartLimitBurst=4

[Service]
Type=exec
{environment}{credential}ExecStart={command}
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
