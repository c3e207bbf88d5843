"""Tables: the events' contents in columns with units, with the evidence of every row."""
