"""The sharing modes: one module per mode, selected by a YAML of `conf/scenario`."""
