"""Records of groups: the spool on disk, samples and provenance, and what a later start has of them."""
