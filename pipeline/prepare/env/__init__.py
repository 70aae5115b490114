"""The environments that jobs run in: one module a kind, named by a YAML of `conf/env`."""
