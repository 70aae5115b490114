"""Running a recorded group again as it was."""
