"""One module for each kind of figure; `catalogue.py` lists them."""
