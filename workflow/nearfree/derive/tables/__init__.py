"""Tables: what the events say, in columns with units, and each row with its evidence."""
