"""`python -m launcher` is the command `mtp-launcher`."""

from launcher.cli.main import run

run()
