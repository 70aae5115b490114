"""One study, from composed configurations to an exit status; the only package that imports every stage."""
