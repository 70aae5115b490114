"""The programs that are collocated: plain scripts that also run by hand."""
