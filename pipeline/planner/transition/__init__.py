"""From one deployment to another: what stays, in which order the rest changes, its proof, and its replay."""
