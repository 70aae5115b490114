"""What was seen of a group: phases, samples, figures, endings, and how it is shown while it runs."""
