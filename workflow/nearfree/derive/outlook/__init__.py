"""Tables that follow from models, datasheets and rules, without measurements."""
