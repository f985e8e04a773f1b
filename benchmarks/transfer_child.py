"""Fetches one file in a process of its own: `python -m benchmarks.transfer_child URL TARGET BYTES SHA256 CONNECTIONS`.

Prints as JSON the seconds of the transfer and the peak memory in MB.
"""

import asyncio
import json
import sys
from pathlib import Path

from benchmarks.header_child import peak_kib
from launcher.fetch.transfer import DownloadSource, TransferSettings, download_file


def main() -> None:
    url, target, size, sha256, connections = sys.argv[1:]
    settings = TransferSettings(connections=int(connections))
    got = asyncio.run(download_file(DownloadSource(url, int(size), sha256), Path(target), settings=settings))
    print(json.dumps({"seconds": got.seconds, "peak_mb": peak_kib() * 1024 / 1e6}))


if __name__ == "__main__":
    main()
