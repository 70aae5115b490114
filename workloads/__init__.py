"""The programs that are collocated: plain scripts that also run by hand.

Each begins by putting the folder of the project first on the module path: of a program that was started by its path,
its own folder comes first there, where our file names would shadow others'.
"""
