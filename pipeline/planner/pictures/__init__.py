"""Pictures of plans, transitions and comparisons of methods, in the style of the report's figures."""
