"""The programs that are collocated: plain scripts that also run by hand.

Each first replaces its own folder on the module path, where file names would shadow other modules, by the project's.
"""
