"""The API key that a command line gives by the options of `key_options`."""

from __future__ import annotations

import argparse
import asyncio
import os
import re
import sys

from launcher.base.errors import BadOption
from launcher.base.paths import expand_user
from launcher.engine.server import registry
from launcher.engine.server.address import parse_address
from launcher.engine.server.listener import verified_api_key

_API_KEY = re.compile(r"[\x21-\x7e]{1,4096}")
"""Visible ASCII, which an HTTP header can carry."""


def read_api_key(url: str | None, options: argparse.Namespace) -> str | None:
    """Return the API key from the variable or the file in the options, None if they have neither.

    Prints a warning if the key would travel to `url` unencrypted. Raises BadOption for a variable that is not set, an
    unreadable file, and an invalid key.
    """
    if options.api_key_env is not None:
        source, text = f"The variable {options.api_key_env}", os.environ.get(options.api_key_env, "")
    elif options.key_file is not None:
        source = str(options.key_file)
        try:
            with expand_user(options.key_file).open(encoding="utf-8", errors="replace") as file:
                text = file.readline(8_192)
        except OSError as error:
            hint = "Name the file that holds the key in its first line."
            raise BadOption(f"--key-file {source} cannot be read: {error.strerror or error}.", hint) from None
    else:
        return None
    key = text.strip()
    if not _API_KEY.fullmatch(key):
        raise BadOption(f"{source} holds no API key.", "It is one word of ASCII characters, alone in the first line.")
    if url is not None and parse_address(url).exposes_key:
        print("Without https, anyone on the network path can read the API key.", file=sys.stderr)
    return key


async def find_api_key(url: str, options: argparse.Namespace) -> str | None:
    """Return the API key in the options, else the key of the running server of this program at `url`, if there is one.

    Raises the errors of `read_api_key` and `listener.verified_api_key`.
    """
    key = read_api_key(url, options)
    if key is not None:
        return key
    address = parse_address(url).registry_url
    running = await asyncio.to_thread(registry.list_entries)
    entry = next((entry for entry in running if entry.url == address), None)
    return await asyncio.to_thread(verified_api_key, entry) if entry else None
