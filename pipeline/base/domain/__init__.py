"""Records and names of the domain: jobs, groups, sharing modes, MIG profiles, tags; nothing here acts or probes."""
