"""Makes all plans for one machine in a process of its own, where nothing is kept yet: `... GIB`.

Prints the milliseconds, without imports, that the catalogue's reading took, and the plans after it.
"""

import sys
import time

from launcher.models.catalogue_load import load_catalogue
from launcher.models.plan import Wish, make_plans, unplanned
from launcher.models.situation import described


def main() -> None:
    """Plan for a GPU of the size that the command line names."""
    situation, wish = described(float(sys.argv[1])), Wish()
    began_s = time.perf_counter()
    catalogue = load_catalogue()
    read_s = time.perf_counter()
    plans = make_plans(catalogue, situation, wish)
    unplanned(catalogue, situation, wish)
    ended_s = time.perf_counter()
    if not plans:
        raise RuntimeError(f"there is no plan for {sys.argv[1]} GiB")
    print(1_000 * (read_s - began_s), 1_000 * (ended_s - read_s))


if __name__ == "__main__":
    main()
