"""`python -m launcher` is the command `mtp-launcher`."""

from launcher.entry import run

run()
