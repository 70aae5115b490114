"""Records and names of the domain: jobs, groups, sharing modes, MIG profiles, tags. Only data, no actions."""
