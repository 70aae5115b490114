"""From configurations to a plan: what runs, in which order, and why something cannot. Knows no hardware."""
