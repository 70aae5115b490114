"""Figures, intervals and verdicts, computed from the rows of a study."""
