"""Undoing what a group did to the machine, also after a kill. Knows no GPU."""
