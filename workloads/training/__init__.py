"""What training programs share: steps, epochs, and the check that results are right."""
