"""Keys of servers that others started: from a variable or a file, never from the command line, which all users see."""

from __future__ import annotations

import argparse
import asyncio
import os
import re
import sys
from pathlib import Path

_KEY = re.compile(r"[\x21-\x7e]{1,4096}")
"""What an HTTP header can carry as a token."""


def add_key_options(parser: argparse.ArgumentParser) -> None:
    """Declare where the key is."""
    group = parser.add_mutually_exclusive_group()
    group.add_argument("--api-key-env", metavar="NAME", help="the environment variable with its API key")
    group.add_argument("--key-file", type=Path, metavar="FILE", help="the file with its API key in the first line")


def key_for(url: str | None, options: argparse.Namespace) -> str | None:
    """Return the key that the options name, None when they name none; warn when the way to `url` would show it.

    Raises BadOption for a variable that is not set, a file that cannot be read, and for what is no key.
    """
    from launcher.attach import address_of
    from launcher.base.errors import BadOption
    from launcher.base.paths import expanded

    if options.api_key_env is not None:
        where, text = f"The variable {options.api_key_env}", os.environ.get(options.api_key_env, "")
    elif options.key_file is not None:
        where = str(options.key_file)
        try:
            with expanded(options.key_file).open(encoding="utf-8", errors="replace") as file:
                text = file.readline(8_192)
        except OSError as error:
            hint = "Name the file that holds the key in its first line."
            raise BadOption(f"--key-file {where} cannot be read: {error.strerror or error}.", hint) from None
    else:
        return None
    key = text.strip()
    if not _KEY.fullmatch(key):
        raise BadOption(f"{where} holds no API key.", "It is one word of ASCII characters, alone in the first line.")
    if url is not None and address_of(url).open_key:
        print("Without https, everybody on the way there can read the API key.", file=sys.stderr)
    return key


async def key_or_ours(url: str, options: argparse.Namespace) -> str | None:
    """Return the key that the options name; else that of a server of ours, which needs none to be given.

    Raises what `key_for` and `listener.key_of` raise.
    """
    from launcher.attach import address_of
    from launcher.engine import registry
    from launcher.engine.listener import key_of

    key = key_for(url, options)
    if key is not None:
        return key
    address = address_of(url).url.replace("//localhost:", "//127.0.0.1:")
    ours = await asyncio.to_thread(registry.running)
    entry = next((entry for entry in ours if entry.url == address), None)
    return await asyncio.to_thread(key_of, entry) if entry else None
