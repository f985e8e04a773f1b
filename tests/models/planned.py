"""Plans for the shipped catalogue, cached because many tests need the same ones."""

from functools import lru_cache

from launcher.models.catalogue import Catalogue
from launcher.models.catalogue_load import shipped_models
from launcher.models.plan import Plan, PlanCriteria, make_plans
from launcher.models.situation import Situation

CATALOGUE = Catalogue(tuple(shipped_models()))


@lru_cache(maxsize=512)
def make_shipped_plans(situation: Situation, criteria: PlanCriteria) -> tuple[Plan, ...]:
    """Return the result of `make_plans` for the shipped catalogue without any header or setting of the user."""
    return make_plans(CATALOGUE, situation, criteria)
