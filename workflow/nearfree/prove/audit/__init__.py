"""From any number down to the events that it was made from, and back by making it again."""
