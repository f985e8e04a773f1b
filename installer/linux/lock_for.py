"""Prints the requirements of a lock file that apply to a version of Python on Linux, without their conditions.

    python lock_for.py LOCK 3.12

pip decides conditions by the Python it runs on, also when it downloads for another.
"""

import sys
from pathlib import Path

from packaging.requirements import Requirement

LINUX = {"sys_platform": "linux", "platform_system": "Linux", "os_name": "posix", "platform_machine": "x86_64"}
WINDOWS = {"sys_platform": "win32", "platform_system": "Windows", "os_name": "nt", "platform_machine": "AMD64"}


def holding(lock: str, python: str, system: dict[str, str]) -> list[str]:
    """Return the lines of `lock` that apply to `python`, such as "3.12", on a system, hashes included."""
    surroundings = {"python_version": python, "python_full_version": f"{python}.0"} | system
    found = []
    for line in lock.replace("\\\n", " ").splitlines():
        if not line or line.startswith("#"):
            continue
        head, *hashes = line.split(" --hash=")
        wanted = Requirement(head)
        if wanted.marker is None or wanted.marker.evaluate(surroundings):
            found.append(" --hash=".join([f"{wanted.name}{wanted.specifier}", *map(str.strip, hashes)]))
    return found


if __name__ == "__main__":
    print("\n".join(holding(Path(sys.argv[1]).read_text("utf-8"), sys.argv[2], LINUX)))
