"""The report of a study: figures, tables and verdicts, computed from recorded runs without a GPU."""
