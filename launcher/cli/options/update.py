"""Options of `mtp-launcher update`."""

import argparse


def configure(parser: argparse.ArgumentParser) -> None:
    """Declare the verb's options."""
    parser.add_argument(
        "--install",
        action="store_true",
        help="download, verify and install it, the same way as this version",
    )
    parser.add_argument(
        "--copies",
        action="store_true",
        help="list the copies of your files from before updates, and how to restore them",
    )
    parser.epilog = "You can interrupt the download at any time: the same command resumes."
