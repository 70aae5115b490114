"""Running a recorded group again with its recorded configuration."""
