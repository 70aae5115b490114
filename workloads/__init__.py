"""The programs that are collocated: plain scripts that also run by hand.

Each first puts the project folder at the front of `sys.path`. Python puts the script's folder there, where our file
names would shadow others.
"""
