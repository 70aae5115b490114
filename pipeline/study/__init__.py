"""One study, from composed configurations to an exit status: the only package that knows every stage."""
