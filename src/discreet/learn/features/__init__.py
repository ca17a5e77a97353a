"""Features that do not depend on private data, and so cost no privacy."""

from discreet.learn.features._scattering import Scattering, contrasts, group_normalised

__all__ = ["Scattering", "contrasts", "group_normalised"]
