"""Import of experiments of other tools as experiment files of this project."""
