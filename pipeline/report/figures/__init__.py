"""One module a kind of figure; `every.py` lists them."""
