"""Starting the jobs of a group, releasing them together and ending them."""
