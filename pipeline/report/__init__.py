"""From the runs of a study to the figures, tables and verdicts of a paper. Reads results; never touches a GPU."""
