"""The sharing modes: one module each, named by a YAML of `conf/scenario`."""
