"""Lists the models on this machine in a process of its own: `python -m benchmarks.stores_child COUNT`.

Prints the seconds that this takes without imports. Fails unless there are COUNT models.
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
        raise RuntimeError(f"Expected {sys.argv[1]} models, found {len(library.models)}.")
    print(seconds)


if __name__ == "__main__":
    main()
