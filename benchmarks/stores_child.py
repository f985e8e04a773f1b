"""Lists the models on this machine in a process of its own: `python -m benchmarks.stores_child COUNT`.

Prints the seconds, without imports, and fails if there are not COUNT.
"""

import sys
import time

from launcher.models.catalogue_load import load_catalogue
from launcher.models.library import list_library


def main() -> None:
    """List the models once."""
    catalogue = load_catalogue()
    began_s = time.perf_counter()
    library = list_library(catalogue)
    seconds = time.perf_counter() - began_s
    if len(library.models) != int(sys.argv[1]):
        raise RuntimeError(f"there are {len(library.models)}")
    print(seconds)


if __name__ == "__main__":
    main()
