"""Pictures of plans, of transitions and of what methods need, in the style of the report's figures."""
