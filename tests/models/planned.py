"""Plans for the shipped catalogue, cached because many tests need the same ones."""

from functools import lru_cache

from launcher.models.catalogue import Catalogue
from launcher.models.catalogue_load import shipped_models
from launcher.models.plan import Plan, PlanCriteria, make_plans
from launcher.models.situation import Situation

CATALOGUE = Catalogue(tuple(shipped_models()))


@lru_cache(maxsize=512)
def make_shipped_plans(situation: Situation, criteria: PlanCriteria) -> tuple[Plan, ...]:
    """Return what `make_plans` returns where no header was read and nothing is changed that it depends on."""
    return make_plans(CATALOGUE, situation, criteria)
