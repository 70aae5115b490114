"""The runs of a study, read as rows."""
