"""Observation of groups: phases, samples, figures, results, and the terminal view while groups run."""
