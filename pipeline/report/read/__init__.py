"""The runs of a study as rows."""
