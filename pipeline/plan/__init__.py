"""From configurations to a plan: the groups, their order, and why a group cannot run. Independent of hardware."""
