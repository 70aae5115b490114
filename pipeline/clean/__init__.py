"""Clean-up of what a group changed on the machine, also after a kill. No module here depends on a GPU."""
