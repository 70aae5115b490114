"""The programs that are collocated: plain scripts that also run by hand.

Python puts the folder of a script first on the module path, so the script's sibling files would shadow other modules of
the same name. Each script therefore first replaces this entry by the project's folder.
"""
