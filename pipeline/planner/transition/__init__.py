"""From one deployment to another: which instances stay, the order of the changes, their proof, and their replay."""
