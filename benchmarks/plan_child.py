"""Makes all plans for one machine in a process of its own: `... GIB`.

Prints the milliseconds of processor time (without imports) for reading the catalogue and for the plans, and the number
of models in the catalogue.
"""

import sys
import time

from launcher.models.catalogue_load import load_catalogue
from launcher.models.plan import PlanCriteria, list_unplanned, make_plans
from launcher.models.situation import describe_machine


def main() -> None:
    """Plan for a GPU of the size that the command line names."""
    situation, wish = describe_machine(float(sys.argv[1])), PlanCriteria()
    began_s = time.process_time()
    catalogue = load_catalogue()
    read_s = time.process_time()
    plans = make_plans(catalogue, situation, wish)
    list_unplanned(catalogue, situation, wish)
    ended_s = time.process_time()
    if not plans:
        raise RuntimeError(f"there is no plan for {sys.argv[1]} GiB")
    print(1_000 * (read_s - began_s), 1_000 * (ended_s - read_s), len(catalogue.models))


if __name__ == "__main__":
    main()
