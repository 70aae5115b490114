"""Records and names of the domain: jobs, groups, sharing modes, MIG profiles, tags; without actions or probes."""
