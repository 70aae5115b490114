"""Tables, words and the page that a report is."""
