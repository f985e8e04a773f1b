"""Options of `mtp-launcher cache`."""

import argparse

from launcher.cli.actions import add_actions, add_deletion_arguments

_ACTIONS = {
    "list": "list what is kept, the last used first",
    "verify": "compare each file with its digest, and delete the damaged ones",
    "delete": "delete what is kept of conversations; they are read again when they go on",
}


def configure(parser: argparse.ArgumentParser) -> None:
    """Declare the verb's options."""
    parser.epilog = (
        "What a model has read is kept when it is unloaded, so that neither the next turn nor an agent's next session "
        "reads it again. `mtp-launcher settings set cache.disk 0` keeps nothing; a request with the header "
        "`Cache-Control: no-store` is not kept."
    )
    actions = add_actions(parser, _ACTIONS)
    add_deletion_arguments(actions["delete"], 'as `cache` shows them, or "all"')
