"""Records of groups: the spool on disk, samples, provenance, and reading them when a study is resumed."""
