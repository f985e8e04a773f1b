"""Options of `mtp-launcher versions`."""

import argparse


def configure(parser: argparse.ArgumentParser) -> None:
    """Declare the verb's options: there are none."""
