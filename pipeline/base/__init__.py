"""Records, protocols and errors, and what every stage uses; knows no stage."""
