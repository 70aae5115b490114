"""What is kept of a group: the spool on disk, its samples and provenance, and what a later start reads."""
