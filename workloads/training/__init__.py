"""The common part of training programs: steps, epochs, and the check that results are right."""
