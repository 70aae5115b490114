"""A plan for those who run it: this project, mig-parted and Kubernetes."""
