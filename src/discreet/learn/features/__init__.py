"""Features that are fixed before the data is seen, and so cost no privacy."""

from discreet.learn.features.normalisation import contrasts, group_normalised
from discreet.learn.features.scattering import Scattering

__all__ = ["Scattering", "contrasts", "group_normalised"]
