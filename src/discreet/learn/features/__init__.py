"""Features that are fixed before the data is seen, and so cost no privacy."""

from discreet.learn.features._scattering import Scattering, contrasts, group_normalised

__all__ = ["Scattering", "contrasts", "group_normalised"]
