"""Observation of groups: phases, samples, figures, outcomes, and the view while they run."""
