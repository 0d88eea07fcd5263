"""For all tests: Hypothesis does not time examples, since machines differ and others use them too."""

from hypothesis import settings

settings.register_profile("untimed", deadline=None)
settings.load_profile("untimed")
