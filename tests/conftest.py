"""How many examples the property tests look at: HYPOTHESIS_PROFILE=soak looks at twenty times as many."""

import os

from hypothesis import HealthCheck, settings

EXAMPLES = 100
SOAK_FACTOR = 20

settings.register_profile(
    "default", max_examples=EXAMPLES, deadline=None, suppress_health_check=[HealthCheck.too_slow], print_blob=True
)
settings.register_profile("soak", settings.get_profile("default"), max_examples=EXAMPLES * SOAK_FACTOR)
settings.load_profile(os.environ.get("HYPOTHESIS_PROFILE", "default"))
