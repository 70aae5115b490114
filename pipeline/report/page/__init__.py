"""The page of a report, with its tables and sentences."""
