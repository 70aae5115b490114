"""The environments that jobs run in: one module per kind, selected by a YAML of `conf/env`."""
