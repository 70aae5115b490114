"""The programs that are collocated: plain scripts that also run by hand.

Each first puts the project folder at the front of `sys.path`. Python puts the folder of the script there, where our
file names would shadow those of other packages.
"""
