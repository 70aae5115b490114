"""From rows to figures, intervals and verdicts."""
